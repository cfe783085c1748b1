"""A node that cannot start gives the reason in a sentence, or waits and says for what; it never shows a traceback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dht.encoding import encode
from dht.identity import NodeKey
from node.base_model import default_model
from node.run_creation import ChainPlace, build_spec, read_draft
from node.testnet.plan import TestnetOptions, free_ports, make_plan
from roles.spec import RunSpec

pytestmark = pytest.mark.slow

NOBODY = "12D3KooWFYKueu8TNC7M47zb5jo64jdEsZvzQ8z4SFdrn1J7Lbc7"
SILENT = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
WAIT_SECONDS = 40


def spec_of_nowhere(tmp_path: Path) -> RunSpec:
    """A well-formed spec whose contract is served nowhere."""
    plan = make_plan(TestnetOptions(tmp_path))
    return build_spec(
        {**read_draft(None), "quorum": plan.quorum},
        model=default_model(),
        place=ChainPlace(31337, "0x" + "11" * 20, "ab" * 32, "cd" * 32),
        validators=[node.as_operator() for node in plan.validators],
        trainers=[node.as_operator() for node in plan.trainers],
    )


def start(tmp_path: Path, role: str, *flags: str) -> subprocess.Popen[str]:
    """A node as a process, with both outputs combined."""
    command = [sys.executable, "-m", "node", "--role", role, "--data", str(tmp_path / "data"), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and complete output, once it has ended by itself."""
    said, _ = process.communicate(timeout=WAIT_SECONDS)
    assert "Traceback" not in said
    return process.returncode, said


def stop_when_said(process: subprocess.Popen[str], words: str) -> tuple[int, str]:
    """Read until the text appears, then ask it to stop. Returns exit status and complete output."""
    lines: list[str] = []
    until = time.monotonic() + WAIT_SECONDS
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if words in line or time.monotonic() > until:
            break
    process.send_signal(signal.SIGTERM)
    code, rest = end_of(process)
    said = "".join(lines) + rest
    assert words in said
    return code, said


def test_start__no_peer_answers_waits_and_says_so__boot_05(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    join = f"intellect://{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}&rpc=http://127.0.0.1:{port}"
    code, said = stop_when_said(start(tmp_path, "worker", "--join", join), "run.not_found_yet")
    assert code == 0, said


def test_start__chain_down_waits_and_says_so(tmp_path: Path) -> None:
    spec = spec_of_nowhere(tmp_path)
    (tmp_path / "spec.json").write_bytes(encode(spec))
    (port,) = free_ports(1)
    flags = ("--spec", str(tmp_path / "spec.json"), "--rpc", f"http://127.0.0.1:{port}")
    code, said = stop_when_said(start(tmp_path, "worker", *flags), "ledger.unreachable")
    assert code == 0, said


def test_start__spec_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_bytes(encode(spec_of_nowhere(tmp_path)))
    code, said = end_of(start(tmp_path, "relay", "--join", "ab" * 32, "--spec", str(tmp_path / "spec.json")))
    assert (code, "not the spec of this run" in said) == (2, True), said


def test_start__port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = end_of(start(tmp_path, "relay", "--join", "ab" * 32, "--port", str(port)))
    assert (code, f"cannot listen on 127.0.0.1 port {port}" in said) == (1, True), said  # BOOT-12


def test_start__data_folder_in_use(tmp_path: Path) -> None:
    first = start(tmp_path, "worker", "--join", "ab" * 32, "--peer", SILENT)
    try:
        assert first.stdout is not None
        for line in first.stdout:
            if "run.not_found_yet" in line:
                break
        where = (tmp_path / "data" / "status.json").read_bytes()
        code, said = end_of(start(tmp_path, "worker", "--join", "ab" * 32, "--peer", SILENT))
        assert (code, "is in use by another node" in said) == (1, True), said  # BOOT-13
        assert (tmp_path / "data" / "status.json").read_bytes() == where  # `status` finds the first one still
    finally:
        first.send_signal(signal.SIGTERM)
        end_of(first)


def test_start__key_file_that_is_damaged(tmp_path: Path) -> None:
    NodeKey.generate().save(tmp_path / "node.key")
    (tmp_path / "node.key").chmod(0o600)
    (tmp_path / "node.key").write_bytes(b"not a key")
    code, said = end_of(start(tmp_path, "worker", "--join", "ab" * 32, "--key", str(tmp_path / "node.key")))
    assert (code, "is not an ed25519 key file" in said) == (2, True), said  # BOOT-14
