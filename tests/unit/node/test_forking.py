"""Processes forked by a server with everything imported behave like any others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.testnet.forking import ForkServer
from node.testnet.processes import Child, processes_of

CALENDAR = [sys.executable, "-m", "calendar", "2026"]
SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")


@pytest.fixture
async def forks(tmp_path: Path) -> AsyncIterator[ForkServer]:
    server = ForkServer(output=tmp_path / "forkserver.log", modules=("json",))
    await server.open()
    yield server
    await server.close()
    assert not processes_of(os.getpid())


async def test_start__does_what_the_command_does(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("calendar", CALENDAR, output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 0
    assert "2026" in child.output.read_text()


async def test_start__one_that_fails_has_its_code_and_last_words(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("calendar", [*CALENDAR, "13", "?"], output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 2
    assert "usage:" in child.output.read_text()


async def test_start__has_a_session_of_its_own_and_dies_alone(forks: ForkServer, tmp_path: Path) -> None:
    first, second = (Child(name, SERVER, output=tmp_path / name / "output.log", forks=forks) for name in "ab")
    await first.start()
    await second.start()
    assert os.getsid(first.pid) == first.pid != os.getsid(second.pid)
    os.kill(first.pid, signal.SIGKILL)
    assert await first.wait() == -signal.SIGKILL
    assert (first.was_killed, second.is_running) == (True, True)
    await second.stop()


async def test_close__ends_what_was_forked(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("a", SERVER, output=tmp_path / "a" / "output.log", forks=forks)
    await child.start()
    await forks.close()
    assert await child.wait() != 0


def test_forkserver__whose_parent_dies_asks_each_to_end_once(tmp_path: Path) -> None:
    output = tmp_path / "said"
    os.mkfifo(output)
    request = {"command": [sys.executable, "-m", "tests.unit.node.patient_process"], "output": str(output)}
    server = [sys.executable, "-m", "node.testnet.forkserver", "json"]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        with output.open() as said:
            assert said.readline() == "up\n"
            process.stdin.close()
            assert said.read() == "asked\n"
    assert process.returncode == 0


async def test_start__without_a_server_the_command_is_executed(tmp_path: Path) -> None:
    forks = ForkServer(output=tmp_path / "forkserver.log", modules=("there.is.no.such.module",))
    await forks.open()
    child = Child("calendar", CALENDAR, output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 0
    assert "no module" in (tmp_path / "forkserver.log").read_text().lower()
    await forks.close()
