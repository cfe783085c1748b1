"""The command line: exit statuses, sentences, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import node.cli
from dht.errors import TransportError
from node.cli import COMMANDS, command_of, dispatch, main, report
from node.errors import ConfigError, Unfit, UsageError
from node.parsing import described, print_line


def test_report__what_a_peer_said_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(TransportError("no relay has it: refused: \x1b[2J\x1b]0;owned\x07"))
    assert capsys.readouterr().err == "intellect-node: no relay has it: refused: ?[2J?]0;owned?\n"


def test_print_line__what_a_peer_said_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("two lines\tof \x1b[31mhardware\r\nhere")
    assert capsys.readouterr().out == "two lines\tof ?[31mhardware?\nhere\n"


def test_bare_command__says_what_it_is_and_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "intellect-node testnet" in said
    assert "--role worker --join" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tesnet"], "unknown command 'tesnet'; did you mean testnet?"),
        (["wroker"], "a role is given by --role: intellect-node --role worker"),
        (["testnet", "--steps", "many"], "argument --steps: 'many' is not a whole number"),
        (["audit", "RUN", "--sample", "half"], "argument --sample: 'half' is not a number"),
        (["keys"], "required: action (new, show, backup, restore, rotate)"),
        (["completion"], "required: shell (bash, zsh, fish)"),
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
    ("words", "named"),
    [
        (["contributions", "--join", "run.join", "--wallet", ""], "--wallet"),
        (["wallet", "link", "--signature="], "--signature"),
        (["wallet", "new", ""], "file"),
        (["shardcast", "get", " ", "--publisher", "x"], "folder"),
        (["testnet", "--dir", ""], "--dir"),
        (["init", ""], "file"),
        (["--role", "worker", "--data", ""], "--data"),
    ],
)
def test_empty_words__are_no_answer(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a shell makes of "$WALLET" when it is not set."""
    with pytest.raises(SystemExit, match="2"):
        dispatch(words)
    assert f"argument {named}: nothing stands there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such thing"), 1),
        (UsageError("no such thing"), 2),
        (Unfit("no such machine"), 3),
        (TransportError("x"), 1),
    ],
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


def test_report__our_own_fault_goes_to_a_file__ux_03(
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
    assert done.returncode == 2
    assert "no run is named: add --join" in done.stderr
    assert "Traceback" not in done.stderr


WRONG_KEYS = {
    ("--key", "/nonexistent/node.key"): "no key file at /nonexistent/node.key",
    ("--wallet", "0x12"): "neither an address",
    ("--wallet", "0x000000000000000000000000000000000000DEad"): "fails its checksum",
    ("--operator-key", "/nonexistent"): "cannot read the key file",
    ("--data", "/proc/none"): "cannot write to the data folder",
    ("--config", "/nonexistent.toml"): "cannot read the configuration",
    ("--config", "/bin/sh"): "is not TOML text",
    ("--peer", "somewhere"): "is not a peer address",
}


def test_node__wrong_keys_are_said_before_anything_is_opened(tmp_path: Path) -> None:
    """One process for all cases, because a node's imports take seconds."""
    node = ["--role", "worker", "--data", str(tmp_path), "--join", "ab" * 32]
    code = """
import json, sys
from node.cli import main
for words in json.loads(sys.argv[1]):
    print("=", main(words), file=sys.stderr)
"""
    given = json.dumps([[*node, *flags] for flags in WRONG_KEYS])
    done = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True, timeout=60, check=True)
    answers = done.stderr.split("= 2\n")
    assert answers.pop() == ""
    for said, answer in zip(WRONG_KEYS.values(), answers, strict=True):
        assert said in answer
    assert "Traceback" not in done.stderr


def test_keys__new_then_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "node.key")
    assert dispatch(["keys", "new", "--key", path]) == 0
    made = capsys.readouterr().out
    assert dispatch(["keys", "show", "--key", path]) == 0
    assert capsys.readouterr().out == made
    assert main(["keys", "new", "--key", path]) == 1  # never over an existing key


# -- what a shell and a script rely on ----------------------------------------------------------------------------------

HEAVY = {"torch", "transformers", "pyarrow", "hivemind", "eth_account", "httpx", "pydantic", "rich", "numpy"}
"""None of these may be loaded just to print what the program is."""


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()[-1]


def test_help__loads_nothing_heavy() -> None:
    code = (
        "import sys; bare = {*sys.modules}; from node.cli import main; main(['--help']); print(*{*sys.modules} - bare)"
    )
    loaded = run_python(code).split()
    assert HEAVY & set(loaded) == set()
    assert len(loaded) < 120  # each adds to what a shell waits for


def test_help_of_a_node__loads_settings_only() -> None:
    code = """
import sys
from node.cli import main
try: main(["--role", "worker", "--help"])
except SystemExit: pass
print(*sys.modules)
"""
    assert HEAVY & set(run_python(code).split()) == {"pydantic"}


@pytest.mark.parametrize("words", [["--help"], ["claim", "--help"], ["testnet", "--adversary", "list"]])
def test_main__reader_that_has_gone_is_no_error(words: list[str]) -> None:
    gone, ours = os.pipe()
    os.close(gone)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "node", *words]
    try:
        done = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, env=buffered, timeout=60, check=False)
    finally:
        os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")


def test_main__closed_output_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m node --help >&- 2>&-'], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0


def test_main__output_that_cannot_be_written_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "node", "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"No space left on device" in done.stderr


def _heed_interrupts() -> None:
    """Restore interrupts, which shells disable for background processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_main__interrupt_ends_with_130_and_without_a_word__ux_07() -> None:
    """Ctrl-C while waiting for a ledger."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "node", "runs", "--rpc", url, "--contract", "0x" + "11" * 20]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=_heed_interrupts) as process:
            silent.settimeout(60)
            caller, _ = silent.accept()
            assert caller.recv(1)  # it has asked, and waits
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)
            caller.close()
    assert (process.returncode, said) == (130, (b"", b""))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker"], "a role is given by --role: intellect-node --role worker --join RUN"),
        (["testnet", "--adversary", ","], "--adversary , names no kind"),
        (["keys", "shwo"], "did you mean show?"),
        (["completion", "bsh"], "did you mean bash?"),
    ],
)
def test_wrong_words__are_understood(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    assert said in capsys.readouterr().err


def test_help_of_a_command__by_help_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "keys"]) == 0
    assert "intellect-node keys new" in capsys.readouterr().out


def test_introduction__names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name}" not in said] == []
    assert "130 interrupted" in said


def test_commands__each_module_is_listed_and_each_answer_can_be_json() -> None:
    """`node` is the command without a name. The others listed here are parts of commands, or act without output."""
    parts = {"node", "reading", "settings", "run_rule", "run_upgrade", "__init__"}
    modules = {path.stem for path in (Path(node.cli.__file__).parent / "commands").glob("*.py")} - parts
    assert modules == set(COMMANDS)
    silent = {"testnet", "completion", "init", "filter", "model"}  # the last two write their answer to a file
    parsers = {name: described(command_of(name)) for name in COMMANDS if name not in silent}
    assert [name for name, parser in parsers.items() if parser is None or "--json" not in parser.flags()] == []


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        dispatch([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_help_of_an_action__is_of_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    whole, rotate, new = (help_of(capsys, "keys", *words) for words in ((), ("rotate",), ("new",)))
    assert "--old NODE rotate: id of the old node" in whole
    assert "--old NODE id of the old node" in rotate
    assert "file the new key's file" in rotate
    assert "intellect-node keys rotate new.key --join RUN" in rotate
    assert "usage: intellect-node keys rotate [-h]" in rotate
    for text, absent in (
        (rotate, "--password-file PASSWORD_FILE file with the backup's"),
        (rotate, "keys backup node"),
        (new, "--old"),
        (new, "--join"),
    ):
        assert absent not in text
    assert "--operator OPERATOR" in new
    assert "what to read" in help_of(capsys, "run", "show")


@pytest.mark.parametrize("words", [("contributions",), ("completion", "bash"), ("testnet", "--steps", "3")])
def test_help_of_a_command_without_actions__is_the_whole(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert help_of(capsys, *words) == help_of(capsys, words[0])
