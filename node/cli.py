"""The command line: which command was meant, and how every failure ends as one sentence and an exit code.

0 done; 1 failed, with a sentence; 2 wrong usage; 130 interrupted. Commands import what they need when they run, so that
`--help` is immediate.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from node import __version__
from node.lifetime import die_with_parent

COMMANDS = {
    "keys": "make or show a node's keys",
    "run": "create a training run, or show one",
    "runs": "list the runs of a ledger",
    "status": "what the node on this machine does",
    "contributions": "what a wallet or node has earned",
    "testnet": "a whole network on this machine",
}
INTRODUCTION = f"""intellect-node {__version__}: a decentralised network that trains a language model by reinforcement learning.

  intellect-node testnet                                   a whole network on this machine
  intellect-node --role worker --join RUN --wallet 0x..    take part in a run
  intellect-node --role worker --help                      every setting of a node

Commands (each has --help):
""" + "\n".join(f"  {name:14} {text}" for name, text in COMMANDS.items())


DISK_FAULTS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
)
"""What is the matter with a disk or folder, not with the program."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they were written; a default is shown when there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False, argparse.SUPPRESS) and action.option_strings
        return f"{action.help} (default: %(default)s)" if has_default else action.help


class Parser(argparse.ArgumentParser):
    """argparse that names the nearest known flag, and takes no abbreviations."""

    def __init__(
        self, prog: str, description: str | None = None, *, examples: str = "", usage: str | None = None
    ) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=f"examples:\n{examples.rstrip()}" if examples else None,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse everything. Exits with 2 on an unknown argument."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0]}{self._nearest(unknown[0])}")
        return found

    def _nearest(self, word: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        close = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
        return f"; did you mean {close[0]}?" if close else f" (see {self.prog} --help)"

    def error(self, message: str) -> NoReturn:
        """Print the message alone (the usage is a --help away) and exit with 2."""
        sys.stderr.write(f"{self.prog}: {message}\n")
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code. Never lets a traceback through."""
    die_with_parent()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no such letter shows a question mark
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return report(error)


def dispatch(words: Sequence[str]) -> int:
    """Find the command of these words and run it."""
    if not words or words[0] in ("-h", "--help", "help"):
        print_line(INTRODUCTION)
        return 0
    if words[0] in ("-V", "--version", "version"):
        print_line(__version__)
        return 0
    if words[0].startswith("-"):
        from node.commands import node as command

        return command.main(words)
    return _run_named(words[0], words[1:])


def _run_named(name: str, words: Sequence[str]) -> int:
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        sys.stderr.write(f"intellect-node: unknown command {name[:64]!r}; {hint}\n")
        return 2
    from importlib import import_module

    return int(import_module(f"node.commands.{name}").main(words))


def print_line(text: str) -> None:
    """Write a line of a command's own output."""
    sys.stdout.write(text + "\n")


def report(error: Exception) -> int:
    """One sentence for a failure. What nobody foresaw goes to a file, whose name is printed."""
    from node.errors import UsageError

    foreseen = _sentences(error)
    if foreseen:
        for sentence in foreseen:
            sys.stderr.write(f"intellect-node: {sentence}\n")
        return 2 if isinstance(error, UsageError) else 1
    path = _save_traceback(error)
    sys.stderr.write(f"intellect-node: an error of the program itself: {type(error).__name__}: {error}\n")
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
