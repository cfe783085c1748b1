"""Who answers for a node's faults with which stake: the wallets behind it, and the keys they staked under. Pure.

A node may replace its key and change its wallet at any moment, also between a submission and its verdicts. So its keys
are one node, and a strike names a wallet that stood behind it since its faults could be handed in, not the one of the
moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledger.records import Commit, HeldStrike, Registration, Stake
from roles.assignment import beacon_step

Stakes = Mapping[tuple[str, str], Stake]


def opening_block(steps: Iterable[int], commits: Iterable[Commit], *, async_level: int) -> int:
    """The block before which nobody could hand in for any of these steps: that of the checkpoint in the first one's
    beacon."""
    first = beacon_step(min(steps), async_level)
    return next((commit.block for commit in commits if commit.step == first), 0)


def wallet_at_risk(held: Registration, *, since: int, stakes: Stakes) -> str | None:
    """Of the wallets linked in block `since` or later the one with most behind the node; of equal ones the first."""
    return max(held.wallets_since(since), key=lambda wallet: _staked(held, wallet, stakes), default=None)


def answers(wallet: str | None, held: Registration, *, since: int, stakes: Stakes) -> bool:
    """Whether a strike may name this wallet: it was linked since, and has nearly as much at stake as any that was. Not
    only the one with most: a little more for another, again and again, would keep validators from ever naming the
    same."""
    wallets = held.wallets_since(since)
    if wallet is None or not wallets:
        return wallet is None and not wallets
    most = max(_staked(held, each, stakes) for each in wallets)
    return wallet in wallets and 10 * _staked(held, wallet, stakes) >= 9 * most


def keys_with_stake(held: Registration, wallet: str | None, stakes: Stakes) -> tuple[str, ...]:
    """The node's keys under which the wallet has stake, bonded or on its way out: a strike freezes that of one."""
    return tuple(key for key in held.keys if wallet is not None and _amount(key, wallet, stakes))


def strikes_before(strikes: Iterable[HeldStrike], key: str, keys: Sequence[str]) -> list[HeldStrike]:
    """The strikes that faults may have been dealt with by: those of this key, and of the node's others that were
    lifted. One that stands against another key took another stake."""
    return [
        each for each in strikes if each.strike.node == key or (each.strike.node in keys and each.outcome == "lifted")
    ]


def _staked(held: Registration, wallet: str, stakes: Stakes) -> int:
    return sum(_amount(key, wallet, stakes) for key in held.keys)


def _amount(key: str, wallet: str, stakes: Stakes) -> int:
    return stakes[(key, wallet)].amount if (key, wallet) in stakes else 0
