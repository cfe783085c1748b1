"""The command line: selects the command, and turns every failure into one sentence and an exit status.

0 done; 1 failed, with a sentence; 2 wrong usage; 3 the machine does not fit; 130 interrupted. Commands import what they
need when they run, so that `--help` is immediate.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from node import __version__
from node.lifetime import die_with_parent
from node.parsing import nearest, print_line
from node.terminal import plain

GROUPS = {
    "begin": {
        "testnet": "a whole network on this machine",
        "doctor": "what is wrong with this machine or its connections to a run, and the fix",
        "init": "write a configuration file that explains every setting",
        "keys": "make, show, back up, restore or replace a node's key",
        "wallet": "make or show a wallet, and link it to a node",
    },
    "take part": {
        "status": "what the node on this machine is doing",
        "contributions": "what a wallet or node has earned",
        "claim": "have earnings paid out",
        "stake": "put coins behind a node",
        "unbond": "begin to take a stake back",
        "withdraw": "have an unbonded stake paid back",
        "strike": "list, answer or close a strike",
    },
    "look at runs": {
        "runs": "list the runs of a ledger",
        "nodes": "who takes part in a run, and how well each has done",
        "run": "create a training run; show, fund, pause or upgrade it",
        "audit": "re-check a run from its public records alone",
    },
    "models and tasks": {
        "model": "import or make a model that a run can start from, or fetch what a run trained",
        "eval": "measure how often a checkpoint passes a task, and compare two",
        "filter": "keep the problems of a data set that a model can learn from",
        "calibrate": "measure how much honest nodes differ, and set a run's thresholds by it",
    },
    "weights without a run": {
        "shardcast": "publish, relay or fetch checkpoints in signed shards",
    },
    "the program": {
        "config": "show every setting and where its value comes from",
        "completion": "completion for bash, zsh or fish",
    },
}
"""Commands grouped by purpose; each is a module of `node.commands`."""
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
ROLES_BY_USE = ("worker", "validator", "trainer", "relay")
EXIT_CODES = (
    "exit codes: 0 done; 1 failed, with a sentence that says why; 2 wrong usage or setting; 3 this machine is less than the "
    "run asks for; 130 interrupted"
)


DISK_FAULTS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
)
"""Errors of a disk or folder, which are not bugs of the program."""


def introduction() -> str:
    """What the program is, and what to type next."""
    lines = [
        f"intellect-node {__version__}: a decentralised network that trains a language model by reinforcement learning.",
        "",
        "  intellect-node testnet                                   see one: a whole network on this machine",
        "  intellect-node --role worker --join RUN --wallet 0x..    take part in a run; RUN comes from its operator",
        "  intellect-node doctor --join RUN                         is this machine ready for it?",
        "  intellect-node --role worker --help                      every setting of a node",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:14} {text}" for name, text in commands.items())]
    return "\n".join(
        [
            *lines,
            "",
            "Each command has --help (keys rotate --help: of one action); those that answer a question have --json.",
            EXIT_CODES,
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status. Never shows a traceback."""
    die_with_parent()
    _mend_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _code_of(words)
        sys.stdout.flush()  # notice a closed pipe here, not while the interpreter exits
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed the pipe (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        code = report(error)
        _drop_unwritten()
        return code


def _drop_unwritten() -> None:
    """Discard output that could not be written (> /dev/full). The interpreter would retry it on exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(words: Sequence[str]) -> int:
    try:
        return dispatch(words)
    except SystemExit as ended:  # raised by argparse for --help and for unknown arguments
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def _mend_streams() -> None:
    """Replace closed streams (>&-) by the null device; a terminal that cannot encode a
    character shows a question mark."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def dispatch(words: Sequence[str]) -> int:
    """Find the command that these words name, and run it."""
    if words and words[0] == "help" and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print_line(introduction())
        return 0
    if words[0] in ("-V", "--version", "version"):
        print_line(__version__)
        return 0
    if words[0].startswith("-"):
        return command_of("node")(words)
    if words[0] not in COMMANDS:
        sys.stderr.write(f"intellect-node: unknown command {words[0][:64]!r}; {_meant(words[0])}\n")
        return 2
    return command_of(words[0])(words[1:])


def command_of(name: str) -> Callable[[Sequence[str]], int]:
    """The function that runs a command. `node` is the one without a name, `--role ..`."""
    from importlib import import_module

    run: Callable[[Sequence[str]], int] = import_module(f"node.commands.{name}").main
    return run


def _meant(name: str) -> str:
    close = nearest(name, (*COMMANDS, *ROLES_BY_USE))
    if close in ROLES_BY_USE:
        return f"a role is given by --role: intellect-node --role {close} --join RUN"
    return f"did you mean {close}?" if close else f"there are {', '.join(COMMANDS)}"


def report(error: Exception) -> int:
    """Print one sentence for a failure. An unexpected one is written to a file, whose name is printed."""
    foreseen = _sentences(error)
    if foreseen:
        for sentence in foreseen:
            sys.stderr.write(f"intellect-node: {plain(sentence)}\n")
        return int(getattr(error, "exit_code", 1))
    path = _save_traceback(error)
    sys.stderr.write(f"intellect-node: an error of the program itself: {type(error).__name__}: {plain(str(error))}\n")
    sys.stderr.write(f"The details are in {path}\n")
    return 1


def _sentences(error: BaseException) -> list[str]:
    from dht.errors import NodeError
    from ledger.errors import LedgerError

    if isinstance(error, BaseExceptionGroup):
        parts = [_sentences(each) for each in error.exceptions]
        return list(dict.fromkeys(line for part in parts for line in part)) if all(parts) else []
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        place = error.filename or "the disk"
        return [f"cannot use {place}: {error.strerror}; see to its space, owner and mode, then start again"]
    return [str(error)] if isinstance(error, NodeError | LedgerError) else []


def _save_traceback(error: Exception) -> Path:
    folder = Path(os.environ.get("INTELLECT_NODE_DATA", "") or tempfile.gettempdir())
    path = folder / f"intellect-node-error-{int(time.time())}-{os.getpid()}.log"
    text = "".join(traceback.format_exception(error))
    try:
        path.write_text(text)
    except OSError:
        path = Path(tempfile.gettempdir()) / path.name
        path.write_text(text)
    return path


if __name__ == "__main__":
    sys.exit(main())
