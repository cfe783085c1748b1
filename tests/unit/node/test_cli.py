"""The command line: exit codes, sentences, and no traceback whatever happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import TransportError
from node.cli import dispatch, main, report
from node.errors import ConfigError, UsageError


def test_bare_command__says_what_it_is_and_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "intellect-node testnet" in said
    assert "--role worker --join" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tesnet"], "unknown command 'tesnet'; did you mean testnet?"),
        (["--role", "worker", "--jion", "x"], "unknown argument --jion; did you mean --join?"),
        (["--role", "wroker"], "did you mean worker?"),
        (["contributions", "--walet", "0x"], "did you mean --wallet?"),
    ],
)
def test_wrong_usage__names_the_nearest_and_exits_with_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as stop:  # argparse leaves by itself
        code = int(str(stop.code))
    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("no such thing"), 1), (UsageError("no such thing"), 2), (TransportError("x"), 1)]
)
def test_report__foreseen_failure_is_one_sentence(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == code
    assert capsys.readouterr().err == f"intellect-node: {error}\n"


def test_report__group_of_foreseen_failures(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("tasks", [ConfigError("one"), ExceptionGroup("more", [TransportError("two")])])
    assert report(group) == 1
    assert capsys.readouterr().err == "intellect-node: one\nintellect-node: two\n"


def test_report__our_own_fault_goes_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_DATA", str(tmp_path))
    assert report(ZeroDivisionError("division by zero")) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    (kept,) = tmp_path.glob("intellect-node-error-*.log")
    assert str(kept) in said
    assert "ZeroDivisionError" in kept.read_text()


def test_node__without_a_run_says_what_to_add(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node", "--role", "worker", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "no run is named: add --join" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--join", "ab" * 32, "--key", "/nonexistent/node.key"], "no key file at /nonexistent/node.key"),
        (["--join", "ab" * 32, "--wallet", "0x12"], "neither an address"),
        (["--join", "ab" * 32, "--wallet", "0x000000000000000000000000000000000000DEad"], "fails its checksum"),
        (["--join", "ab" * 32, "--operator-key", "/nonexistent"], "cannot read the key file"),
    ],
)
def test_node__wrong_keys_are_said_before_anything_is_opened(flags: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "node", "--role", "worker", "--data", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_keys__new_then_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "node.key")
    assert dispatch(["keys", "new", "--key", path]) == 0
    made = capsys.readouterr().out
    assert dispatch(["keys", "show", "--key", path]) == 0
    assert capsys.readouterr().out == made
    assert main(["keys", "new", "--key", path]) == 1  # never over an existing key
