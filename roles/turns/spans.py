"""Which tokens of a completion are the policy's and which the tool's. Pure.

`turns` holds lengths, the policy's and the tool's in alternation, the policy's first and last: `(9, 2, 4)` is nine tokens of the
policy, two of the tool, four of the policy. Empty: no tool in this run, all is the policy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from roles.assignment import TWO_63, draw

Turns = tuple[int, ...]
T = TypeVar("T")


def own_spans(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    """Start and end of what the policy said, in order: `(9, 2, 4)` -> (0, 9), (11, 15)."""
    yield from list(_bounds(turns, length))[::2]


def tool_spans(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    """Start and end of what the tool said: `(9, 2, 4)` -> (9, 11)."""
    yield from list(_bounds(turns, length))[1::2]


def own_tokens(output: Sequence[T], turns: Turns) -> tuple[T, ...]:
    """The policy's part of a completion, or of anything that has an entry for each of its tokens."""
    return tuple(item for start, end in own_spans(turns, len(output)) for item in output[start:end])


def own_count(turns: Turns, length: int) -> int:
    """How many tokens are the policy's: what is paid, and what the loss is over."""
    return sum(end - start for start, end in own_spans(turns, length))


def turn_seed(seed: int, turn: int) -> int:
    """The sampling seed of the policy's turn of that number: the row's own for the first, then one drawn from it. Positions
    count from 0 in each turn, so that any engine takes a turn as a request of its own."""
    return draw(str(seed), "turn", turn, TWO_63) if turn else seed


def _bounds(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    return pairwise(accumulate(turns or (length,), initial=0))
