"""Which stake is liable for a node's faults: the wallets behind the node, and the keys they staked under. Pure.

A node may replace its key and change its wallet at any time, even between a submission and its verdicts. So all its
keys count as one node, and a strike names a wallet that was linked at some time since its faults could be submitted,
not just the current one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledger.records import Commit, HeldStrike, Registration, Stake
from roles.assignment import beacon_step

Stakes = Mapping[tuple[str, str], Stake]


def opening_block(steps: Iterable[int], commits: Iterable[Commit], *, async_level: int) -> int:
    """The block before which nobody could submit for any of these steps: that of the checkpoint
    in the first step's beacon."""
    first = beacon_step(min(steps), async_level)
    return next((commit.block for commit in commits if commit.step == first), 0)


def wallet_at_risk(held: Registration, *, since: int, stakes: Stakes) -> str | None:
    """Of the wallets linked in block `since` or later, the one with the largest stake for the
    node; the first of equal ones."""
    return max(held.wallets_since(since), key=lambda wallet: _staked(held, wallet, stakes), default=None)


def answers(wallet: str | None, held: Registration, *, since: int, stakes: Stakes) -> bool:
    """Whether a strike may name this wallet: it has been linked since then, and has nearly as much at stake as any such
    wallet. The largest stake is not required, because someone who keeps adding slightly more to another wallet would
    keep validators from ever naming the same one."""
    wallets = held.wallets_since(since)
    if wallet is None or not wallets:
        return wallet is None and not wallets
    most = max(_staked(held, each, stakes) for each in wallets)
    return wallet in wallets and 10 * _staked(held, wallet, stakes) >= 9 * most


def keys_with_stake(held: Registration, wallet: str | None, stakes: Stakes) -> tuple[str, ...]:
    """The node's keys under which the wallet has stake, bonded or unbonding; a strike freezes the stake of one key."""
    return tuple(key for key in held.keys if wallet is not None and _amount(key, wallet, stakes))


def strikes_before(strikes: Iterable[HeldStrike], key: str, keys: Sequence[str]) -> list[HeldStrike]:
    """The strikes that may have covered faults already: those of this key, and lifted ones of the node's other keys. A
    strike in force against another key took a different stake."""
    return [
        each for each in strikes if each.strike.node == key or (each.strike.node in keys and each.outcome == "lifted")
    ]


def _staked(held: Registration, wallet: str, stakes: Stakes) -> int:
    return sum(_amount(key, wallet, stakes) for key in held.keys)


def _amount(key: str, wallet: str, stakes: Stakes) -> int:
    return stakes[(key, wallet)].amount if (key, wallet) in stakes else 0
