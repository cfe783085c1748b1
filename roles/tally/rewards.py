"""From units to amounts, in whole numbers: the epoch's payment, its split, and the resulting leaves.

    pot = min(budget, funds - promised before)
    role's part = pot * thousandths // 1000;  node's part = role's part * its units // the role's units of the epoch

The remainder of a division stays in the pool. Nothing is ever promised twice, and a payable leaf never
decreases. Leaves are never dropped, so their number is limited: past the limit no new node is credited, while
those with a leaf continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ledger.merkle import sorted_leaves
from roles.messages import Role
from roles.tally.body import TallyLeaf, plain_leaves
from roles.tally.context import TallyContext

Units = Mapping[Role, Mapping[str, int]]
"""Each node's work in the epoch, by role."""
Holder = tuple[Role, str, str | None]
"""Role, node, wallet."""


@dataclass(slots=True)
class _Sums:
    units: int = 0
    amount: int = 0


def epoch_pot(*, budget: int, funds: int, promised: int) -> int:
    """Base units available to share: `(100, 250, 200) -> 50`; never below 0."""
    return max(0, min(budget, funds - promised))


def split(part: int, units: Mapping[str, int]) -> dict[str, int]:
    """Share a role's part by units, rounded down: `split(10, {a: 1, b: 2}) -> {a: 3, b: 6}`."""
    total = sum(units.values())
    return {node: part * count // total for node, count in units.items() if count > 0}


def new_leaves(context: TallyContext, units: Units) -> tuple[TallyLeaf, ...]:
    """The parent's leaves plus this epoch's additions, each to the wallet that its node had at the closing block.

    Units stay where they were counted. Amounts that a node earned without a wallet (in a leaf nobody can claim) move to
    its wallet's leaf in the first epoch that closes with the node linked.
    """
    sums = {
        (leaf.role, leaf.node, leaf.wallet): _Sums(leaf.units, leaf.amount)
        for leaf in (context.parent.leaves if context.parent else ())
    }
    pot = epoch_pot(
        budget=int(context.spec.rewards.budget),
        funds=context.funds,
        promised=sum(held.amount for held in sums.values()),
    )
    leaves = Counter(role for role, _, _ in sums)
    _move_linked(sums, leaves, context)
    for role, thousandths in context.spec.rewards.shares().items():
        known = {node for held, node, wallet in sums if held == role and wallet == context.wallet_of(held, node)}
        counted = _with_room(
            units.get(role, {}),  # type: ignore[call-overload]
            known=known,
            most=context.limits.leaves.get(role),  # type: ignore[call-overload]
            leaves=leaves[role],  # type: ignore[index]
        )
        parts = split(pot * thousandths // 1000, counted)
        for node, count in counted.items():
            _add(sums, (role, node, context.wallet_of(role, node)), count, parts.get(node, 0))  # type: ignore[arg-type]
    return _sorted(sums)


def _with_room(units: Mapping[str, int], *, known: Collection[str], most: int | None, leaves: int) -> Mapping[str, int]:
    """Units of the nodes that have a leaf, and of the other nodes with most units, up to `most` leaves: with one place
    left, `{known: 1, a: 2, b: 3} -> {known: 1, b: 3}`."""
    if most is None:
        return units
    others = sorted(
        (node for node in units if node not in known and units[node]), key=lambda node: (-units[node], node)
    )
    credited = {*known, *others[: max(0, most - leaves)]}
    return {node: count for node, count in units.items() if node in credited}


def _move_linked(sums: dict[Holder, _Sums], leaves: Counter[Role], context: TallyContext) -> None:
    """Move amounts without a wallet to the node's wallet, if it has one now. This may take as many
    leaves again as earners have."""
    for (role, node, wallet), held in list(sums.items()):
        linked = context.wallet_of(role, node) if wallet is None and held.amount else None
        if linked is None:
            continue
        if (role, node, linked) not in sums:
            if leaves[role] >= 2 * context.limits.leaves.get(role, leaves[role] + 1):
                continue
            leaves[role] += 1
        _add(sums, (role, node, linked), 0, held.amount)
        held.amount = 0


def _add(sums: dict[Holder, _Sums], holder: Holder, units: int, amount: int) -> None:
    held = sums.setdefault(holder, _Sums())
    held.units += units
    held.amount += amount


def _sorted(sums: Mapping[Holder, _Sums]) -> tuple[TallyLeaf, ...]:
    leaves = [
        TallyLeaf(role=role, node=node, wallet=wallet, units=held.units, amount=held.amount)
        for (role, node, wallet), held in sums.items()
        if held.units or held.amount
    ]
    return in_tree_order(leaves)


def in_tree_order(leaves: Iterable[TallyLeaf]) -> tuple[TallyLeaf, ...]:
    """Leaves in the tree's order. Raises ValueError when a (role, node, wallet) appears twice."""
    given = list(leaves)
    by_plain = dict(zip(plain_leaves(given), given, strict=True))
    return tuple(by_plain[leaf] for leaf in sorted_leaves(by_plain))
