"""Which claimed newest blocks are plausible, given what was believed before and what others claim."""

from __future__ import annotations

import pytest

from ledger.heads import BLOCKS_PER_SECOND, LEAP, Claim, is_contradicted, is_leap

NOW = 10**9


@pytest.mark.parametrize(
    ("ahead", "seconds", "leaps"),
    [
        (-5, 0, False),
        (LEAP, 0, False),
        (LEAP + 1, 0, True),
        (LEAP + 10 * BLOCKS_PER_SECOND, 10, False),
        (LEAP + 10 * BLOCKS_PER_SECOND + 1, 10, True),
    ],
)
def test_is_leap__more_than_a_chain_makes_meanwhile(ahead: int, seconds: float, leaps: bool) -> None:
    assert is_leap(1000 + ahead, since=1000, seconds=seconds) == leaps


@pytest.mark.parametrize(
    ("number", "others", "contradicted"),
    [
        (10**6, [], False),
        (10**6, [10], True),  # of two the lower
        (10**6, [10, 10], True),
        (10**6, [10, 10**6], False),
        (10**6, [10, 10**6, 10], True),  # as many for it as against it
        (10**6, [10, 10**6, 10, 10**6], False),
        (10, [10**6, 10**6], False),  # one that lags is not our business
    ],
)
def test_is_contradicted__by_half_of_all_asked(number: int, others: list[int], contradicted: bool) -> None:
    claims = [Claim(each, NOW) for each in others]
    assert is_contradicted(Claim(number, NOW), claims, now=NOW) == contradicted


@pytest.mark.parametrize(
    ("own_time", "clock", "contradicted"),
    [
        (NOW, NOW, False),
        (NOW, NOW - 10**6, True),  # our clock is behind: a claim's own time is not enough
        (2**62, NOW - 10**5, True),
        (NOW - 10**5, NOW, True),  # as old as the witness, and yet so far ahead
    ],
)
def test_is_contradicted__a_witness_that_lags_allows_for_its_lag(own_time: int, clock: int, contradicted: bool) -> None:
    witness = Claim(1000, NOW - 10**5)
    claim = Claim(1000 + 10**5 * BLOCKS_PER_SECOND, own_time)
    assert is_contradicted(claim, [witness], now=clock) == contradicted
