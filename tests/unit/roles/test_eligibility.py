"""Who is ejected, and whose stake counts, through strikes, lifts, rotations and unbonding."""

from __future__ import annotations

from dataclasses import replace

from ledger.records import HeldStrike, Registration, Stake, Strike
from ledger.wallet import address_of
from roles.eligibility import bonded_stakes, ejected_nodes
from tests.builders import WALLETS, WORKERS

OLD, NEW = WORKERS[0].node, WORKERS[1].node
WALLET, OTHER = address_of(WALLETS[0]), address_of(WALLETS[1])
STRUCK = HeldStrike(Strike("ab" * 32, OLD, WALLET, 0, 401, "cd" * 32), block=5, until=100, attesters=("a", "b"))


def registered(node: str, *previous: str, wallet: str | None = WALLET) -> dict[str, Registration]:
    """One node's registration."""
    return {node: Registration(node, wallet, None, 1, 2, 2, previous)}


def test_ejected_nodes__open_and_settled_strikes_but_not_lifted_ones() -> None:
    assert ejected_nodes([STRUCK], {}) == {OLD}
    assert ejected_nodes([replace(STRUCK, outcome="settled")], {}) == {OLD}
    assert ejected_nodes([replace(STRUCK, outcome="lifted")], {}) == frozenset()


def test_ejected_nodes__a_new_key_does_not_shake_off_a_strike() -> None:
    assert NEW in ejected_nodes([STRUCK], registered(NEW, OLD))


def test_ejected_nodes__lifted_once_and_struck_again() -> None:
    again = replace(STRUCK, strike=replace(STRUCK.strike, number=1))
    assert ejected_nodes([replace(STRUCK, outcome="lifted"), again], {}) == {OLD}


def test_bonded_stakes__of_the_wallet_in_force_under_every_key_of_the_node() -> None:
    stakes = {
        (OLD, WALLET): Stake(OLD, WALLET, 5, 0),
        (NEW, WALLET): Stake(NEW, WALLET, 7, 0),
        (NEW, OTHER): Stake(NEW, OTHER, 100, 0),
    }
    assert bonded_stakes(stakes, registered(NEW, OLD)) == {NEW: 12}
    assert bonded_stakes(stakes, registered(NEW, wallet=None)) == {}


def test_bonded_stakes__what_is_being_taken_back_counts_no_more() -> None:
    assert bonded_stakes({(NEW, WALLET): Stake(NEW, WALLET, 7, 99)}, registered(NEW)) == {NEW: 0}
