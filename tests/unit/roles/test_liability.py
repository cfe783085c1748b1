"""Which stake answers for a node's faults, through changes of its wallet and its key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.records import Commit, HeldStrike, Registration, Stake, Strike
from ledger.wallet import address_of
from roles.liability import answers, keys_with_stake, opening_block, strikes_before, wallet_at_risk
from tests.builders import WALLETS, WORKERS

OLD, NEW = WORKERS[0].node, WORKERS[1].node
FIRST, SECOND, THIRD = map(address_of, WALLETS)
HELD = Registration(NEW, None, None, 3, 2, 30, (OLD,), links=((2, FIRST), (20, SECOND), (30, None)))
"""A node that has replaced its key, and was linked to one wallet, then another, then none."""


def stakes(*held: tuple[str, str, int]) -> dict[tuple[str, str], Stake]:
    """Stakes of wallets under keys."""
    return {(key, wallet): Stake(key, wallet, amount, 0) for key, wallet, amount in held}


@pytest.mark.parametrize(
    ("since", "wallets"),
    [(2, (FIRST, SECOND)), (20, (FIRST, SECOND)), (21, (SECOND,)), (30, (SECOND,)), (31, ()), (1, (FIRST, SECOND))],
)
def test_wallets_since__those_linked_in_that_block_or_later(since: int, wallets: tuple[str, ...]) -> None:
    assert HELD.wallets_since(since) == wallets


def test_wallet_at_risk__of_those_that_stood_behind_the_node_who_has_most() -> None:
    both = stakes((OLD, FIRST, 10), (OLD, SECOND, 4), (NEW, SECOND, 7), (NEW, THIRD, 99))
    assert wallet_at_risk(HELD, since=10, stakes=both) == SECOND  # 4 and 7, under two keys
    assert wallet_at_risk(HELD, since=10, stakes={}) == FIRST
    assert wallet_at_risk(HELD, since=31, stakes=both) is None


def test_wallet_at_risk__what_is_on_its_way_out_is_at_risk() -> None:
    leaving = {(OLD, FIRST): Stake(OLD, FIRST, 10, unbond_at=99)}
    assert wallet_at_risk(HELD, since=10, stakes=leaving) == FIRST


def test_answers__a_little_more_for_another_wallet_refuses_nobody_s_case() -> None:
    held = stakes((OLD, FIRST, 10), (OLD, SECOND, 11), (OLD, THIRD, 99))
    assert answers(FIRST, HELD, since=10, stakes=held)
    assert answers(SECOND, HELD, since=10, stakes=held)
    assert not answers(THIRD, HELD, since=10, stakes=held)
    assert not answers(None, HELD, since=10, stakes=held)
    assert not answers(FIRST, HELD, since=10, stakes=stakes((OLD, FIRST, 10), (OLD, SECOND, 12)))
    assert answers(None, HELD, since=31, stakes=held)


def test_keys_with_stake__each_is_struck_by_itself() -> None:
    held = stakes((OLD, FIRST, 10), (NEW, FIRST, 1), (NEW, SECOND, 5))
    assert keys_with_stake(HELD, FIRST, held) == (OLD, NEW)
    assert keys_with_stake(HELD, SECOND, held) == (NEW,)
    assert keys_with_stake(HELD, None, held) == ()


def test_opening_block__of_the_checkpoint_that_the_first_step_draws_from() -> None:
    commits = [Commit(1, step, f"{step:064x}", "0" * 64, False, 10 * step, 0) for step in range(6)]
    assert opening_block([5, 4], commits, async_level=2) == 10
    assert opening_block([1], commits, async_level=2) == 0
    assert opening_block([90], commits, async_level=2) == 0


def test_strikes_before__those_of_another_key_deal_with_faults_only_once_lifted() -> None:
    other = HeldStrike(Strike("ab" * 32, OLD, FIRST, 0, 401, "cd" * 32), block=5, until=100, attesters=())
    own = replace(other, strike=replace(other.strike, node=NEW))
    assert strikes_before([other, own], NEW, (OLD, NEW)) == [own]
    lifted = replace(other, outcome="lifted")
    assert strikes_before([lifted, own], NEW, (OLD, NEW)) == [lifted, own]
    assert strikes_before([lifted, own], NEW, (NEW,)) == [own]
