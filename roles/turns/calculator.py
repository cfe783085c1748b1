"""The calculator: a call such as `3*(4+1)=` is answered by `15`. Exact arithmetic on bounded text, without `eval`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

from dht.encoding import digest
from roles.tasks.task import TaskError

NAME = "calculator"
VERSION = "calculator/1"
MAX_CALL = 128
"""Maximum characters of an expression; earlier ones are ignored."""
EXPRESSION = re.compile(r"[0-9+\-*/(). ]+\Z")
TOKEN = re.compile(r"\d+(?:\.\d+)?|[+\-*/()]")
DIGITS = 12
ERROR = "error"


class _NoValue(Exception):
    """The text is not an expression, or has no value."""


@dataclass(frozen=True, slots=True)
class Calculator:
    """Evaluates the expression at the end of a call; see `Tool` for the contract of each member."""

    opening: str
    closing: str
    after: str  # written after each answer
    name: str = NAME

    @property
    def digest(self) -> str:
        """Digest of its version and its marks."""
        return digest(VERSION, self.opening, self.closing, self.after)

    def answer(self, call: str) -> str:
        """`7+4` -> `11`, `1/8` -> `0.125`, `2/3` -> `0.666666666667`, anything else -> `error`."""
        found = EXPRESSION.search(call[-MAX_CALL:])
        try:
            return (_write(_evaluate(found.group())) if found else ERROR) + self.after
        except _NoValue:
            return ERROR + self.after


def load_calculator(parameters: Mapping[str, int | str]) -> Calculator:
    """Build the tool. Parameters: `opening` (default none), `closing` (default `=`), `after` (default none)."""
    if unknown := parameters.keys() - {"opening", "closing", "after"}:
        raise TaskError(f"tool {NAME}: unknown parameter {min(unknown)[:64]!r}; known: after, closing, opening")
    opening, closing, after = (str(parameters.get(key, default)) for key, default in _DEFAULTS.items())
    if not is_mark(closing) or (opening and not is_mark(opening)) or len(after) > 16 or not after.isascii():
        raise TaskError(
            f"tool {NAME}: opening, closing and after are 1 to 16 printable ASCII characters without blanks"
        )
    return Calculator(opening, closing, after)


_DEFAULTS = {"opening": "", "closing": "=", "after": ""}


def is_mark(text: str) -> bool:
    """Whether a text can mark the start or end of a call: every tokenizer must write it so
    that it can be found again."""
    return 1 <= len(text) <= 16 and all("!" <= character <= "~" for character in text)


def _evaluate(text: str) -> Fraction:
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text.replace(" ", ""):
        raise _NoValue
    reader = _Reader(tokens)
    value = reader.sum()
    if reader.rest:
        raise _NoValue
    return value


class _Reader:
    """Recursive descent; the depth is bounded by the length of a call."""

    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens[::-1]

    def sum(self) -> Fraction:
        value = self._product()
        while self._next in ("+", "-"):
            value = value + self._product() if self.rest.pop() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next in ("*", "/"):
            if self.rest.pop() == "*":
                value *= self._factor()
            elif divisor := self._factor():
                value /= divisor
            else:
                raise _NoValue
        return value

    def _factor(self) -> Fraction:
        token = self.rest.pop() if self.rest else ""
        if token == "-":  # noqa: S105
            return -self._factor()
        if token == "(":  # noqa: S105
            value = self.sum()
            if not self.rest or self.rest.pop() != ")":
                raise _NoValue
            return value
        if not token or not token[0].isdigit():
            raise _NoValue
        return Fraction(token)

    @property
    def _next(self) -> str:
        return self.rest[-1] if self.rest else ""


def _write(value: Fraction) -> str:
    """Write an integer as it is, and other numbers with `DIGITS` digits, rounded half to even, without an exponent.
    Raises _NoValue for a number with more digits than that before the point."""
    if abs(value) >= 10**DIGITS:
        raise _NoValue
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    if abs(rounded) < Decimal("1e-12"):
        return "0"
    text = f"{rounded:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
