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


class Simulation:
    """Transfers of 1 MB, one after the other, from relays of unequal speed (MB/s), one of which fails at times."""

    def __init__(self, speeds: dict[str, float]) -> None:
        self.choice, self._speeds = make_choice(), speeds
        self.down: set[str] = set()

    def run(self, transfers: int) -> Counter[str]:
        """How often each relay was asked first."""
        asked: Counter[str] = Counter()
        for _ in range(transfers):
            relay = self.choice.order(self._speeds)[0]
            asked[relay] += 1
            if relay in self.down:
                self.choice.failed(relay)
            else:
                self.choice.succeeded(relay, size=10**6, seconds=1 / self._speeds[relay])
        return asked


def test_order__simulated_shares_become_those_of_the_speeds() -> None:
    simulation = Simulation({"a": 8.0, "b": 4.0, "c": 2.0, "d": 2.0})
    simulation.run(300)
    asked = simulation.run(4000)
    for relay, share in {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125}.items():
        assert asked[relay] / 4000 == pytest.approx(share, rel=0.15)


def test_order__simulated_relay_that_flaps_loses_traffic_at_once_and_gets_it_back_wgt_03() -> None:
    simulation = Simulation({"flaps": 8.0, "a": 4.0, "b": 4.0})
    simulation.run(300)
    for _ in range(3):
        simulation.down = {"flaps"}
        assert simulation.run(12)["flaps"] <= 9
        assert simulation.run(200)["flaps"] <= 20  # looked at now and then
        simulation.down = set()
        simulation.run(200)
        assert simulation.run(1000)["flaps"] / 1000 == pytest.approx(0.5, rel=0.2)
