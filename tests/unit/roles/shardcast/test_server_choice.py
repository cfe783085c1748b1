"""Choosing relays."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from roles.shardcast.server_choice import ServerChoice


def make_choice(clock: list[float] | None = None) -> ServerChoice:
    now = clock or [0.0]
    return ServerChoice(draw=random.Random(1), clock=lambda: now[0])


def first_picks(choice: ServerChoice, relays: list[str], draws: int = 2000) -> Counter[str]:
    return Counter(choice.order(relays)[0] for _ in range(draws))


def test_succeeded__averages_by_hand() -> None:
    choice = make_choice()
    choice.score("a").success = 0.5
    choice.score("a").bandwidth = 1e6
    choice.succeeded("a", size=2_000_000, seconds=1.0)
    assert choice.score("a").success == pytest.approx(0.3 + 0.7 * 0.5)
    assert choice.score("a").bandwidth == pytest.approx(0.3 * 2e6 + 0.7 * 1e6)


def test_failed__lowers_bandwidth_wgt_03() -> None:
    choice = make_choice()
    before = choice.score("a").bandwidth
    choice.failed("a")
    assert choice.score("a").bandwidth == pytest.approx(0.7 * before)


def test_order__dead_relay_loses_its_share_wgt_03() -> None:
    choice = make_choice()
    for _ in range(20):
        choice.failed("dead")
        choice.succeeded("alive", size=10**6, seconds=1.0)
    picks = first_picks(choice, ["dead", "alive"])
    assert picks["dead"] < 0.05 * picks["alive"]
    assert picks["dead"] > 0  # and is still looked at now and then


def test_order__in_proportion_to_bandwidth() -> None:
    choice = make_choice()
    for _ in range(50):
        choice.succeeded("fast", size=3 * 10**6, seconds=1.0)
        choice.succeeded("slow", size=10**6, seconds=1.0)
    picks = first_picks(choice, ["fast", "slow"])
    assert picks["fast"] / picks["slow"] == pytest.approx(3, rel=0.2)


def test_order__healed_relay_comes_back() -> None:
    choice = make_choice()
    for _ in range(20):
        choice.failed("a")
    for _ in range(100):
        choice.succeeded("b", size=10**6, seconds=1.0)
    assert choice.score("a").success == pytest.approx(1.0)


def test_cheated__out_for_a_minute_then_two() -> None:
    clock = [0.0]
    choice = make_choice(clock)
    choice.cheated("liar")
    assert choice.order(["liar", "a"]) == ["a"]
    clock[0] = 61.0
    assert set(choice.order(["liar", "a"])) == {"liar", "a"}
    choice.cheated("liar")
    clock[0] = 61.0 + 90.0
    assert choice.is_banned("liar")


def test_is_well__not_after_two_failures() -> None:
    choice = make_choice()
    choice.failed("a")
    assert choice.is_well("a")
    choice.failed("a")
    assert not choice.is_well("a")
    assert choice.is_well("unknown")


def test_succeeded__small_transfer_says_nothing_of_bandwidth() -> None:
    choice = make_choice()
    before = choice.score("a").bandwidth
    choice.succeeded("a", size=100, seconds=0.1)
    assert choice.score("a").bandwidth == before
