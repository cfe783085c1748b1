"""Decides whether the newest block that an end-point claims is plausible, given what was believed before
and what others claim. Pure.

A head far in the chain's future would make a reader request blocks that do not exist, and make a
transaction look deeply buried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAP = 256
"""Allowed difference in blocks between honest end-points' heads at one moment; also more than the
difference between two polls."""
BLOCKS_PER_SECOND = 32
"""An upper bound: no chain makes more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The number of a claimed newest block, and its time in chain seconds."""

    number: int
    timestamp: int


def is_leap(number: int, *, since: int, seconds: float) -> bool:
    """Whether block `number` is too far ahead: no chain gets there from block `since` in that many seconds."""
    return number > since + LEAP + BLOCKS_PER_SECOND * seconds


def is_contradicted(claim: Claim, others: Sequence[Claim], *, now: int) -> bool:
    """Whether at least half of all end-points, counting the claimant, report a newest block that the claim cannot be so
    far ahead of. Of two end-points that contradict each other the lower one is believed.

    The time by which another end-point lags is allowed for. The claim's own timestamp counts only up to `now`, so a
    claim cannot excuse itself with a false one.
    """
    against = sum(_is_absurd(claim, other, now=now) for other in others)
    return against > 0 and 2 * against >= len(others) + 1


def _is_absurd(claim: Claim, other: Claim, *, now: int) -> bool:
    lag = min(claim.timestamp, max(now, other.timestamp)) - other.timestamp
    return is_leap(claim.number, since=other.number, seconds=max(0, lag))
