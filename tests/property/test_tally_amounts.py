"""Amounts over epochs: never more than funded or budgeted, no payable leaf ever falls, and order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.records import Registration
from ledger.wallet import address_of
from roles.messages import Role
from roles.spec import RewardSpec
from roles.tally import TallyBody, TallyContext, TallyLeaf
from roles.tally.rewards import Units, epoch_pot, new_leaves, split
from tests.builders import VALIDATORS, WALLETS, make_spec, node_key

NODES = tuple(node_key(number).node for number in range(41, 46))
WALLET = tuple(map(address_of, WALLETS))
BUDGET = 10_000
SPEC = make_spec(rewards=RewardSpec(budget=str(BUDGET)))

counts = st.dictionaries(st.sampled_from(NODES), st.integers(0, 2**70), max_size=5)
work = st.fixed_dictionaries(dict.fromkeys(get_args(Role), counts))
links = st.dictionaries(st.sampled_from(NODES), st.sampled_from((None, *WALLET)), max_size=5)
epochs = st.lists(st.tuples(work, links, st.integers(0, 3 * BUDGET)), min_size=1, max_size=6)


def context_after(leaves: tuple[TallyLeaf, ...] | None, linked: Mapping[str, str | None], funds: int) -> TallyContext:
    """The epoch after the one with these leaves; `linked` are the current wallets of nodes."""
    registrations = {node: Registration(node, linked.get(node), None, 1, 2, 2) for node in NODES}
    fields: dict[str, Any] = {"spec": SPEC, "run": SPEC.run_id, "closing_block": 10, "quorum": 2, "commits": {}}
    body = None
    if leaves is not None:
        zeros = "0" * 64
        body = TallyBody(
            run=SPEC.run_id,
            epoch=0,
            round=0,
            closing_block=1,
            parent_root=zeros,
            parent_blob=zeros,
            items=(),
            credited=(),
            leaves=leaves,
        )
    return TallyContext(
        roots=(),
        parent=body,
        validators=tuple(key.node for key in VALIDATORS),
        registrations=registrations,
        payouts=dict.fromkeys(NODES, WALLET[0]),
        funds=funds,
        **fields,
    )


@settings(max_examples=150, deadline=None)
@given(epochs)
def test_new_leaves__bounded_by_funds_and_budget_and_paid_leaves_only_rise(history: list[Any]) -> None:
    leaves: tuple[TallyLeaf, ...] | None = None
    funds, promised = 0, 0
    held: dict[Any, tuple[int, int]] = {}
    for units, linked, added in history:
        funds += added
        leaves = new_leaves(context_after(leaves, linked, funds), units)
        now = {(leaf.role, leaf.node, leaf.wallet): (leaf.units, leaf.amount) for leaf in leaves}
        total = sum(amount for _, amount in now.values())
        assert promised <= total <= min(funds, promised + BUDGET)
        for holder, (count, amount) in held.items():
            assert now[holder][0] >= count
            assert now[holder][1] >= amount or (holder[2] is None and now[holder][1] == 0)
        promised, held = total, now


@settings(max_examples=100, deadline=None)
@given(work, links, st.randoms(use_true_random=False))
def test_new_leaves__order_is_nothing(units: Units, linked: dict[str, str | None], chance: Any) -> None:
    def shuffled(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        items = list(mapping.items())
        chance.shuffle(items)
        return dict(items)

    context = context_after(None, linked, BUDGET)
    other = replace(context, registrations=shuffled(context.registrations))
    assert new_leaves(context, units) == new_leaves(
        other, shuffled({role: shuffled(each) for role, each in units.items()})
    )


@given(st.integers(0, 2**127), counts)
def test_split__never_gives_more_than_there_is(part: int, units: dict[str, int]) -> None:
    shares = split(part, units)
    assert sum(shares.values()) <= part
    assert sum(shares.values()) > part - max(1, len(shares)) or not any(units.values())


@given(st.integers(0, 2**127), st.integers(0, 2**127), st.integers(0, 2**127))
def test_epoch_pot__within_budget_and_funds(budget: int, funds: int, promised: int) -> None:
    pot = epoch_pot(budget=budget, funds=funds, promised=promised)
    assert 0 <= pot <= budget
    assert pot == 0 or promised + pot <= funds
