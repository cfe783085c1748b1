"""The cost model of docs/attacks.md, compared with simulated cheaters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.cheating_cost import Terms

TERMS = Terms(rate=0.1, validators=3, detection=0.9, strikes=3, saved=0.7, cost=0.8)


def play(terms: Terms, stake: float, chance: random.Random) -> float:
    """One cheater until it is ejected. Returns its gain over an honest node with as many submissions."""
    gained, strikes = 0.0, 0
    while strikes < terms.strikes:
        audited = any(chance.random() < terms.rate for _ in range(terms.validators))
        is_caught = audited and chance.random() < terms.detection
        strikes += is_caught
        gained += terms.saved * terms.cost - is_caught
    return gained - stake


@pytest.mark.parametrize("terms", [TERMS, replace(TERMS, rate=0.5), replace(TERMS, strikes=1, validators=7)])
def test_gain__as_played_out(terms: Terms) -> None:
    chance = random.Random(7)
    games = [play(terms, 2.0, chance) for _ in range(20_000)]
    assert sum(games) / len(games) == pytest.approx(terms.gain(2.0), abs=0.15)


def test_gain__hand_computed() -> None:
    everything = replace(TERMS, rate=1.0, detection=1.0)
    assert everything.caught == 1.0
    assert everything.cheats == 3
    assert everything.gain(0.0) == pytest.approx(3 * (0.56 - 1))
    assert everything.stake_needed == 0.0


def test_stake_needed__leaves_nothing_to_gain() -> None:
    rare = replace(TERMS, rate=0.02)
    assert rare.stake_needed > 0
    assert rare.gain(rare.stake_needed) == pytest.approx(0)
