"""Which tokens of a completion are the policy's and which the tool's. Pure.

`turns` holds lengths, alternating between policy and tool, the policy's first and last: `(9, 2, 4)` is nine tokens of
the policy, two of the tool, four of the policy. Empty: the run has no tool, and all tokens are the policy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from roles.assignment import TWO_63, draw

Turns = tuple[int, ...]
T = TypeVar("T")


def own_spans(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    """Start and end of the policy's spans, in order: `(9, 2, 4)` -> (0, 9), (11, 15)."""
    yield from list(_bounds(turns, length))[::2]


def tool_spans(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    """Start and end of the tool's spans: `(9, 2, 4)` -> (9, 11)."""
    yield from list(_bounds(turns, length))[1::2]


def own_tokens(output: Sequence[T], turns: Turns) -> tuple[T, ...]:
    """The policy's part of a completion, or of any sequence with an entry for each of its tokens."""
    return tuple(item for start, end in own_spans(turns, len(output)) for item in output[start:end])


def own_count(turns: Turns, length: int) -> int:
    """Number of tokens that are the policy's: these are paid for and enter the loss."""
    return sum(end - start for start, end in own_spans(turns, length))


def turn_seed(seed: int, turn: int) -> int:
    """The sampling seed of the policy's turn with that number: the row's own for the first, then one drawn from it.
    Positions count from 0 in each turn, so that any engine can take a turn as a separate request."""
    return draw(str(seed), "turn", turn, TWO_63) if turn else seed


def _bounds(turns: Turns, length: int) -> Iterator[tuple[int, int]]:
    return pairwise(accumulate(turns or (length,), initial=0))
