"""Whether the newest block that an end-point claims can be: by what was believed before, and by what others claim. Pure.

A head far in the future of its chain makes a reader ask for blocks that do not exist, and a transaction look buried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAP = 256
"""Blocks by which honest end-points' heads may differ at one moment, and more than between two polls."""
BLOCKS_PER_SECOND = 32
"""More than any chain makes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A newest block's number and its time in chain seconds."""

    number: int
    timestamp: int


def is_leap(number: int, *, since: int, seconds: float) -> bool:
    """Whether no chain went from block `since` to this one in so many seconds."""
    return number > since + LEAP + BLOCKS_PER_SECOND * seconds


def is_contradicted(claim: Claim, others: Sequence[Claim], *, now: int) -> bool:
    """Whether at least half of all end-points asked, the claimant among them, name a newest block that this one cannot
    be ahead of so far. Of two that contradict each other the lower is believed.

    One that lags is no witness for the time it lags; a claim's own time counts up to `now`, or it could excuse itself.
    """
    against = sum(_is_absurd(claim, other, now=now) for other in others)
    return against > 0 and 2 * against >= len(others) + 1


def _is_absurd(claim: Claim, other: Claim, *, now: int) -> bool:
    lag = min(claim.timestamp, max(now, other.timestamp)) - other.timestamp
    return is_leap(claim.number, since=other.number, seconds=max(0, lag))
