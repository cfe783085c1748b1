"""Arguments of commands: argparse that suggests the nearest flag or choice, accepts no
abbreviations, and can be inspected.

Knows no command. `described` returns a command's parser without running the command. Completion and the documentation's
tests are built on it, so that neither can fall behind the program.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from node.terminal import plain

_BAD_CHOICE = re.compile(r"invalid choice: '(?P<given>.*?)' \(choose from")
_BAD_NUMBER = re.compile(r"invalid (?P<kind>int|float) value: (?P<given>'.*')$", re.S)
_MISSING = "the following arguments are required: "
_looking: ContextVar[bool] = ContextVar("looking", default=False)


class Described(Exception):
    """Carries a command's parser out of it before the command does anything."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of examples, and shows a default where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False, [], "", argparse.SUPPRESS) and action.option_strings
        return f"{action.help} (default: %(default)s)" if has_default else action.help


class Parser(argparse.ArgumentParser):
    """argparse that suggests the nearest known flag, and accepts no abbreviations."""

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
        """Parse everything. Exits with status 2 on an unknown argument."""
        if _looking.get():
            raise Described(self)
        self._focus(list(sys.argv[1:] if args is None else args))
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0][:64]}{self._hint(unknown[0])}")
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse an empty value: it usually comes from a shell variable that is not set."""
        if any(not word.strip() for word in arg_strings):
            raise argparse.ArgumentError(action, "nothing stands there (a variable of the shell that is not set?)")
        return super()._get_values(action, arg_strings)

    def flags(self) -> list[str]:
        """Every flag of the parser, long and short."""
        return [flag for action in self._actions for flag in action.option_strings]

    def all_actions(self) -> list[argparse.Action]:
        """Every argument, with a flag or without."""
        return list(self._actions)

    def action_of(self, flag: str) -> argparse.Action | None:
        """The action of a flag."""
        return self._option_string_actions.get(flag)

    def positionals(self) -> list[argparse.Action]:
        """Arguments without a flag, in order."""
        return self._get_positional_actions()

    def _focus(self, words: Sequence[str]) -> None:
        """For help on one action (`keys rotate --help`), hide the arguments and examples of other actions. They are
        recognised by the action names at the start of their text."""
        action = self._get_positional_actions()[0] if self._get_positional_actions() else None
        if action is None or action.dest != "action" or not {"-h", "--help"} & set(words):
            return
        chosen = next((word for word in words if word in (action.choices or ())), None)
        if chosen is None:
            return
        action.metavar, action.help = chosen, argparse.SUPPRESS
        for each in self._actions:
            each.help = _clause_of(each.help, chosen, set(action.choices or ()))
        self.usage = (
            self.format_usage()
            .removeprefix("usage: ")
            .replace(f" {chosen}", "")
            .replace(self.prog, f"{self.prog} {chosen}", 1)
        )
        of_others = re.compile(rf"{self.prog} (?!{chosen}\b)({'|'.join(map(str, action.choices or ()))})\b")
        self.epilog = "\n".join(line for line in (self.epilog or "").splitlines() if not of_others.search(line))

    def _hint(self, word: str) -> str:
        close = nearest(word.partition("=")[0], self.flags())
        return f"; did you mean {close}?" if close else f" (see {self.prog} --help)"

    def error(self, message: str) -> NoReturn:
        """Print only the message, without the usage, and exit with status 2."""
        sys.stderr.write(f"{self.prog}: {self._plain(message)}\n")
        sys.exit(2)

    def _plain(self, message: str) -> str:
        """argparse's message, extended by the valid choices and the nearest one, and without its jargon for numbers."""
        if message.startswith(_MISSING):
            choices = {action.dest: ", ".join(map(str, action.choices)) for action in self._actions if action.choices}
            names = message.removeprefix(_MISSING).split(", ")
            return _MISSING + ", ".join(f"{name} ({choices[name]})" if name in choices else name for name in names)
        if number := _BAD_NUMBER.search(message):
            kind = "a whole number" if number["kind"] == "int" else "a number"
            return f"{message[: number.start()]}{number['given'][:64]} is not {kind}"
        wrong = _BAD_CHOICE.search(message)
        if not wrong:
            return message
        close = nearest(wrong["given"], (str(word) for action in self._actions for word in action.choices or ()))
        return f"{message}; did you mean {close}?" if close else message


def _clause_of(text: str | None, chosen: str, actions: set[str]) -> str | None:
    """The part of a help text such as `backup, restore: the backup; rotate: the new key's file` that concerns the
    chosen action; hidden if there is none. A part without an action's name in front applies to all actions if it comes
    first, otherwise it continues the part before it."""
    clauses: list[tuple[set[str], str]] = []
    for part in (text or "").split("; "):
        names, _, rest = part.partition(": ")
        named = set(names.split(", "))
        if rest and named <= actions | {"else"}:
            clauses.append((named, rest))
        elif clauses:
            clauses[-1] = clauses[-1][0], f"{clauses[-1][1]}; {part}"
        else:
            return text
    return next((said for named, said in clauses if named & {chosen, "else"}), argparse.SUPPRESS)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a mistyped one probably stands for."""
    return next(iter(difflib.get_close_matches(word[:64], list(known), n=1)), None)


def described(command: Callable[[Sequence[str]], object]) -> Parser | None:
    """The parser of a command, which is run only as far as its arguments; None for one without a parser."""
    token = _looking.set(True)
    try:
        command([])
    except Described as found:
        return found.parser
    finally:
        _looking.reset(token)
    return None


def print_line(text: str) -> None:
    """Print one or more lines of a command's output. They may contain text from peers, so
    control characters are removed."""
    sys.stdout.write("\n".join(map(plain, text.split("\n"))) + "\n")


def print_hint(text: str) -> None:
    """Print a line for the user on standard error, apart from the output that a script reads."""
    sys.stderr.write(plain(text) + "\n")
