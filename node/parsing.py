"""Arguments of commands: argparse that names the nearest flag or choice, takes no abbreviations, and can be looked at.

Knows no command. `described` gives a command's parser without running the command: completion and the documentation's
tests are made of it, so that neither can fall behind the program.
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
    """Carries the parser of a command out of it, before the command does anything."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they were written; a default is shown when there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False, [], "", argparse.SUPPRESS) and action.option_strings
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
        if _looking.get():
            raise Described(self)
        self._focus(list(sys.argv[1:] if args is None else args))
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0][:64]}{self._hint(unknown[0])}")
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Nothing means something by being empty: it is a variable that the shell had not set."""
        if any(not word.strip() for word in arg_strings):
            raise argparse.ArgumentError(action, "nothing stands there (a variable of the shell that is not set?)")
        return super()._get_values(action, arg_strings)

    def flags(self) -> list[str]:
        """Every flag it takes, long and short."""
        return [flag for action in self._actions for flag in action.option_strings]

    def all_actions(self) -> list[argparse.Action]:
        """Every argument, with a flag or without."""
        return list(self._actions)

    def action_of(self, flag: str) -> argparse.Action | None:
        """What a flag does."""
        return self._option_string_actions.get(flag)

    def positionals(self) -> list[argparse.Action]:
        """Arguments without a flag, in order."""
        return self._get_positional_actions()

    def _focus(self, words: Sequence[str]) -> None:
        """Where help is asked of one action (`keys rotate --help`), leave out what belongs to others: arguments and examples
        whose text begins with their names."""
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
        """Print the message alone (the usage is a --help away) and exit with 2."""
        sys.stderr.write(f"{self.prog}: {self._plain(message)}\n")
        sys.exit(2)

    def _plain(self, message: str) -> str:
        """argparse's words, with the choices there are and the nearest one named; numbers without its words for them."""
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
    """Of `backup, restore: the backup; rotate: the new key's file` what concerns the chosen action; hidden if nothing does.
    What no action's name stands in front of is for all of them, or goes on with what was said of one."""
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
    """The known word that a mistyped one was probably meant to be."""
    return next(iter(difflib.get_close_matches(word[:64], list(known), n=1)), None)


def described(command: Callable[[Sequence[str]], object]) -> Parser | None:
    """The parser of a command, which gets no further than to its arguments; None for one that has none."""
    token = _looking.set(True)
    try:
        command([])
    except Described as found:
        return found.parser
    finally:
        _looking.reset(token)
    return None


def print_line(text: str) -> None:
    """Write a line of a command's own output, or several. What peers said may stand in it: nothing of it steers a terminal."""
    sys.stdout.write("\n".join(map(plain, text.split("\n"))) + "\n")


def print_hint(text: str) -> None:
    """Write a line for the person at the terminal to standard error, apart from the output that a script reads."""
    sys.stderr.write(plain(text) + "\n")
