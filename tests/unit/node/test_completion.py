"""Completion: candidates from the commands' own parsers, and how bash uses them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from node.cli import COMMANDS, command_of, main
from node.commands.completion import SCRIPTS, candidates
from node.parsing import described


def words(*typed: str) -> list[str]:
    """The words offered in place of the last one."""
    return [word for word, _ in candidates(typed)]


def test_candidates__commands_come_first() -> None:
    assert set(COMMANDS) <= set(words(""))
    assert words("contrib") == ["contributions"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["--role", ""], ["worker", "validator", "trainer", "relay"]),
        (["--ro"], ["--role"]),
        (["--role", "worker", "--log-level", "w"], ["warning"]),
        (["contributions", "--wal"], ["--wallet"]),
        (["keys", "s"], ["show"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["contributions", "--config", ""], []),  # a file: the shell's own business
        (["nonsense", ""], []),
    ],
)
def test_candidates__depend_on_what_was_typed(typed: list[str], offered: list[str]) -> None:
    assert words(*typed) == offered


@pytest.mark.parametrize("name", ["node", *COMMANDS])
def test_described__every_command_has_help_and_no_flag_without_a_text(name: str) -> None:
    """None does anything before its arguments are parsed: completion looks at it on every key press."""
    parser = described(command_of(name))
    assert parser is not None
    assert parser.description
    assert [action.dest for action in parser.all_actions() if action.option_strings and not action.help] == []


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_completion__each_script_is_printed_and_its_shell_takes_it(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "completion --words" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=20)


def test_completion__bash_completes() -> None:
    program = f'intellect-node() {{ "{sys.executable}" -m node "$@"; }}\n'
    typed = "COMP_WORDS=(intellect-node run sh); COMP_CWORD=2; _intellect_node; printf '%s' \"${COMPREPLY[*]}\""
    script = subprocess.run(
        [sys.executable, "-m", "node", "completion", "bash"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    done = subprocess.run(
        ["bash", "-c", f"{program}{script}\n{typed}"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "show"
