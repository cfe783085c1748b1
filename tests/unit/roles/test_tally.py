"""The tally: built, checked, and refused for every lie that its proposer can put in."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST, encode, sha256
from dht.envelope import Envelope, to_bytes
from dht.identity import NodeKey
from ledger.merkle import merkle_root
from ledger.records import FinalRoot, Leaf, Operator, Proposal, Registration, ValidatorSet
from ledger.wallet import address_of, node_from_public_key
from roles.messages import Receipt, ReceivedShare, Role, Submission
from roles.seals import seal_of
from roles.spec import CheckSpec, RewardSpec
from roles.tally import (
    MAX_BODY,
    Contribution,
    TallyBody,
    TallyContext,
    TallyFault,
    TallyItem,
    TallyLeaf,
    TallyRefused,
    build_tally,
    check_tally,
    open_final_tally,
    open_tally,
    pending_contributions,
    place_digest,
    proposal_of,
)
from roles.tally.items import pack_item, row_text, rows_of
from roles.tally.limits import HEADER_BYTES, LEAF_BYTES, MOST_LEAVES, PLACE_BYTES, ROW_BYTES, TallyLimits
from roles.tally.reading import bench_of
from roles.tally.rewards import in_tree_order
from tests.builders import (
    STRANGER,
    TRAINER,
    VALIDATORS,
    WALLETS,
    WORKERS,
    World,
    make_judges,
    make_spec,
    make_submission,
    make_verdict,
    make_view,
    make_world,
    node_key,
)

WORLD = make_world()
PAYOUTS = {item.node: item.payout for item in (*WORLD.spec.validators, *WORLD.spec.trainers)}


def make_context(**changes: Any) -> TallyContext:
    """Epoch 0, closed at the block of checkpoint 2."""
    view = make_view(WORLD.spec)
    fields: dict[str, Any] = {
        "spec": WORLD.spec,
        "run": WORLD.run,
        "roots": (),
        "parent": None,
        "closing_block": 30,
        "validators": tuple(key.node for key in VALIDATORS),
        "quorum": WORLD.spec.quorum,
        "payouts": PAYOUTS,
        "leaders": {1: TRAINER.node},
        "published": {0: 1000, 1: 1000, 2: 1000},
        "commits": view.commits,
        "registrations": view.registrations,
    }
    return TallyContext(**{**fields, **changes})


def contribution(submission: Submission, *, world: World = WORLD, voters: int = 2, **verdict: Any) -> Contribution:
    """A submission and the acceptances of the first validators."""
    key = next(key for key in (*WORKERS, STRANGER) if key.node == submission.node)
    verdicts = tuple(world.row(make_verdict(submission, **verdict), validator) for validator in VALIDATORS[:voters])
    return Contribution(world.row(submission, key), verdicts)


def leaf_of(role: Role, node: str, wallet: str | None, units: int, amount: int = 0) -> Leaf:
    """A leaf as the ledger has it."""
    return Leaf(role=role, node=node, wallet=wallet, units=units, amount=amount)


def units_of(blob: bytes, role: Role) -> dict[str, int]:
    """Cumulative units by node, of one role."""
    return {leaf.node: leaf.units for leaf in open_tally(blob).leaves if leaf.role == role}


def two_contributions() -> list[Contribution]:
    """A hundred units of the first worker, fifty of the second."""
    return [
        contribution(make_submission(WORLD, WORKERS[0], tokens=100)),
        contribution(make_submission(WORLD, WORKERS[1], tokens=50)),
    ]


def honest() -> tuple[bytes, Proposal]:
    """A tally without any flaw."""
    return build_tally(make_context(), two_contributions(), round_number=0)


def final(blob: bytes, proposal: Proposal) -> FinalRoot:
    """The ledger's record of a tally."""
    return FinalRoot(
        proposal.epoch, proposal.round, proposal.closing_block, proposal.root, proposal.total, proposal.blob, 40, ()
    )


def lie(change: Callable[[TallyBody], dict[str, Any]]) -> tuple[bytes, Proposal]:
    """The honest tally with some fields changed by the proposer; root and total are made to match."""
    body = open_tally(honest()[0])
    body = body.model_copy(update=change(body))
    blob = zlib.compress(encode(body))
    return blob, proposal_of(body, blob)


def fault_of(blob: bytes, proposal: Proposal, context: TallyContext | None = None, **known: Any) -> TallyFault:
    """The validator's reason to refuse."""
    with pytest.raises(TallyRefused) as caught:
        check_tally(blob, proposal, context or make_context(), **known)
    return caught.value.fault


def test_build_tally__checked_and_worth_what_was_accepted() -> None:
    blob, proposal = honest()
    check_tally(blob, proposal, make_context())
    leaves = [
        leaf_of("worker", WORKERS[0].node, address_of(WALLETS[0]), 100),
        leaf_of("worker", WORKERS[1].node, address_of(WALLETS[1]), 50),
        leaf_of("validator", VALIDATORS[0].node, PAYOUTS[VALIDATORS[0].node], 2),
        leaf_of("validator", VALIDATORS[1].node, PAYOUTS[VALIDATORS[1].node], 2),
        leaf_of("trainer", TRAINER.node, PAYOUTS[TRAINER.node], 2),
    ]
    assert (proposal.root, proposal.total, proposal.blob) == (merkle_root(leaves), 156, sha256(blob))


def test_build_tally__leaves_out_what_no_quorum_accepted() -> None:
    items = [*two_contributions(), contribution(make_submission(WORLD, WORKERS[2], tokens=7), voters=1)]
    assert sum(units_of(build_tally(make_context(), items, round_number=0)[0], "worker").values()) == 150


def test_build_tally__second_epoch_adds_to_the_first() -> None:
    blob, proposal = honest()
    context = make_context(
        roots=(final(blob, proposal),),
        parent=open_tally(blob),
        closing_block=50,
        commits=make_view(WORLD.spec, commits=5).commits,
    )
    later = contribution(make_submission(WORLD, WORKERS[0], step=4, policy_step=3, tokens=11))
    second, proposed = build_tally(context, [*two_contributions(), later], round_number=1)
    check_tally(second, proposed, context)
    assert (proposed.epoch, proposed.parent_root) == (1, proposal.root)
    assert sum(units_of(second, "worker").values()) == 161
    assert units_of(second, "trainer") == {TRAINER.node: 4}  # steps 1 to 4, each in one of the two epochs
    assert len(open_tally(second).items) == 1  # what was credited before is left out


def test_check_tally__omission_is_no_fault() -> None:
    blob, proposal = build_tally(make_context(), two_contributions()[:1], round_number=0)
    check_tally(blob, proposal, make_context())


def test_check_tally__units_inflated__chain_17() -> None:
    def inflate(body: TallyBody) -> dict[str, Any]:
        first = body.leaves[0]
        return {"leaves": (first.model_copy(update={"units": first.units + 1}), *body.leaves[1:])}

    assert fault_of(*lie(inflate)) is TallyFault.WRONG_UNITS


def _leaf(node: str, **changes: Any) -> TallyLeaf:
    fields: dict[str, Any] = {"role": "worker", "node": node, "wallet": None, "units": 0, "amount": 0}
    return TallyLeaf(**{**fields, **changes})


def test_check_tally__leaf_of_somebody_who_did_nothing() -> None:
    def favour(body: TallyBody) -> dict[str, Any]:
        return {"leaves": (*body.leaves, _leaf(STRANGER.node, units=1))}

    assert fault_of(*lie(favour)) is TallyFault.WRONG_UNITS


def test_check_tally__units_moved_to_another_wallet() -> None:
    def move(body: TallyBody) -> dict[str, Any]:
        first = body.leaves[0]
        return {"leaves": (first.model_copy(update={"wallet": address_of(WALLETS[2])}), *body.leaves[1:])}

    assert fault_of(*lie(move)) is TallyFault.WRONG_UNITS


def _with_item(rows: tuple[Envelope, tuple[Envelope, ...]]) -> tuple[bytes, Proposal]:
    item = TallyItem(
        submission=base64.b64encode(to_bytes(rows[0])).decode(),
        verdicts=tuple(base64.b64encode(to_bytes(row)).decode() for row in rows[1]),
    )
    return lie(lambda body: {"items": (*body.items, item)})


def _extra(**verdict: Any) -> Contribution:
    return contribution(make_submission(WORLD, WORKERS[2], tokens=7), **verdict)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda c: (c.submission, c.verdicts[:1]), id="too few"),
        pytest.param(lambda c: (c.submission, (c.verdicts[0], c.verdicts[0])), id="one twice"),
        pytest.param(
            lambda c: (c.submission, (c.verdicts[0], replace(c.verdicts[1], signature=c.verdicts[0].signature))),
            id="forged signature",
        ),
        pytest.param(lambda c: (c.submission, _extra(outcome="soft", reason=201).verdicts), id="not acceptances"),
        pytest.param(lambda c: (c.submission, _extra(tokens=8).verdicts), id="of other units"),
        pytest.param(lambda c: (c.submission, _extra(index=1).verdicts), id="of another index"),
        pytest.param(lambda c: (c.submission, two_contributions()[0].verdicts), id="of another submission"),
        pytest.param(lambda c: (replace(c.submission, payload=b"{}"), c.verdicts), id="forged submission"),
        pytest.param(lambda c: (c.verdicts[0], c.verdicts), id="verdict as submission"),
    ],
)
def test_check_tally__item_no_quorum_accepted(
    rows: Callable[[Contribution], tuple[Envelope, tuple[Envelope, ...]]],
) -> None:
    assert fault_of(*_with_item(rows(_extra()))) is TallyFault.INVALID_ITEM


def test_check_tally__verdicts_of_strangers() -> None:
    submission = make_submission(WORLD, WORKERS[2])
    votes = tuple(WORLD.row(make_verdict(submission), key) for key in (STRANGER, WORKERS[0]))
    assert fault_of(*_with_item((WORLD.row(submission, WORKERS[2]), votes))) is TallyFault.INVALID_ITEM


def test_check_tally__verdicts_of_another_run() -> None:
    other = make_world(WORLD.spec.model_copy(update={"name": "other"}))
    submission = make_submission(WORLD, WORKERS[2])
    theirs = contribution(submission.model_copy(update={"run": other.run}), world=other)
    assert fault_of(*_with_item((theirs.submission, theirs.verdicts))) is TallyFault.INVALID_ITEM


def test_check_tally__node_not_registered() -> None:
    item = contribution(make_submission(WORLD, STRANGER))
    assert fault_of(*_with_item((item.submission, item.verdicts))) is TallyFault.UNREGISTERED


def test_check_tally__step_not_committed_by_the_closing_block() -> None:
    item = contribution(make_submission(WORLD, WORKERS[2], step=3, policy_step=2))
    assert fault_of(*_with_item((item.submission, item.verdicts))) is TallyFault.NOT_CREDITABLE


def test_check_tally__index_twice() -> None:
    item = two_contributions()[0]
    assert fault_of(*_with_item((item.submission, item.verdicts))) is TallyFault.REPEATED_ITEM


def test_check_tally__two_submissions_of_one_index() -> None:
    other = contribution(make_submission(WORLD, WORKERS[0], tokens=101))
    assert fault_of(*_with_item((other.submission, other.verdicts))) is TallyFault.REPEATED_ITEM


def test_check_tally__credited_in_an_earlier_epoch() -> None:
    """Also under another digest: a node's index is credited once."""
    blob, proposal = honest()
    context = make_context(roots=(final(blob, proposal),), parent=open_tally(blob), closing_block=50)
    fresh = replace(context, parent=open_tally(blob).model_copy(update={"credited": ((),)}))
    again = contribution(make_submission(WORLD, WORKERS[0], tokens=99))
    twice, proposed = build_tally(fresh, [again], round_number=0)
    assert fault_of(twice, proposed, context) is TallyFault.CREDITED_BEFORE


def test_check_tally__history_forgotten() -> None:
    assert fault_of(*lie(lambda body: {"credited": ()})) is TallyFault.WRONG_HISTORY


def test_check_tally__disputed_item() -> None:
    blob, proposal = honest()
    disputed = two_contributions()[0].submission.digest
    assert fault_of(blob, proposal, disputed=[disputed]) is TallyFault.DISPUTED


@pytest.mark.parametrize("changes", [{"epoch": 1}, {"round": 4}, {"closing_block": 29}, {"run": "ab" * 32}])
def test_check_tally__header_of_another_epoch(changes: dict[str, Any]) -> None:
    blob, proposal = lie(lambda body: changes)
    assert fault_of(blob, replace(proposal, round=0)) is TallyFault.WRONG_EPOCH


@pytest.mark.parametrize("changes", [{"parent_root": "ab" * 32}, {"parent_blob": "ab" * 32}])
def test_check_tally__other_parent(changes: dict[str, Any]) -> None:
    assert fault_of(*lie(lambda body: changes)) is TallyFault.WRONG_PARENT


@pytest.mark.parametrize("changes", [{"root": "ab" * 32}, {"total": 157}, {"amount": 1}, {"blob": "ab" * 32}])
def test_check_tally__attests_other_than_the_blob_says(changes: dict[str, Any]) -> None:
    blob, proposal = honest()
    assert fault_of(blob, replace(proposal, **changes)) is TallyFault.WRONG_ROOT


def test_check_tally__more_than_the_parent_and_an_epoch_can_hold_is_not_even_parsed() -> None:
    blob = zlib.compress(b"[" + b" " * (MAX_BODY - 2) + b"]")
    assert fault_of(blob, replace(honest()[1], blob=sha256(blob))) is TallyFault.TOO_LARGE


def test_open_tally__bomb_is_refused_in_bounded_memory() -> None:
    with pytest.raises(TallyRefused) as caught:
        open_tally(zlib.compress(bytes(MAX_BODY + 1)))
    assert caught.value.fault is TallyFault.TOO_LARGE


@pytest.mark.parametrize("blob", [b"", b"{}", zlib.compress(b"{}"), zlib.compress(b"[" * 100_000), honest()[0] + b"x"])
def test_open_tally__garbage(blob: bytes) -> None:
    with pytest.raises(TallyRefused):
        open_tally(blob)


def test_open_final_tally__other_bytes_than_the_ledger_names() -> None:
    blob, proposal = honest()
    with pytest.raises(TallyRefused):
        open_final_tally(blob, replace(final(blob, proposal), blob=ZERO_DIGEST))


def test_oldest_block__items_stay_creditable_for_as_many_epochs_as_validators() -> None:
    roots = tuple(replace(final(*honest()), closing_block=10 * number) for number in range(1, 4))
    parent = open_tally(honest()[0]).model_copy(update={"credited": ((), (), ())})
    assert make_context(roots=roots[:2], parent=parent).oldest_block == -1
    assert make_context(roots=roots, parent=parent).oldest_block == 10


FIVE = tuple(key.node for key in (*VALIDATORS, node_key(14), node_key(15)))


def test_oldest_block__a_set_that_grows_looks_back_no_further_than_places_are_kept() -> None:
    roots = tuple(replace(final(*honest()), closing_block=10 * number) for number in range(1, 7))
    parent = open_tally(honest()[0]).model_copy(update={"credited": ((), (), ())})  # kept by three validators
    assert make_context(roots=roots, parent=parent, validators=FIVE).oldest_block == 30


def test_build_tally__validators_join__what_was_credited_is_not_credited_again() -> None:
    """Four epochs of three validators, which remember three; five validators would look back five."""
    item = contribution(make_submission(WORLD, tokens=100), voters=3)
    context = make_context()
    for epoch in range(4):
        blob, proposal = build_tally(context, [item], round_number=0)
        roots, parent = (*context.roots, final(blob, proposal)), check_tally(blob, proposal, context)
        context = make_context(roots=roots, parent=parent, closing_block=31 + epoch)
    grown = replace(context, validators=FIVE, quorum=3)
    blob, proposal = build_tally(grown, [item], round_number=0)
    assert not check_tally(blob, proposal, grown).items
    assert units_of(blob, "worker") == {WORKERS[0].node: 100}


def test_check_tally__validators_joined__item_from_before_what_is_remembered() -> None:
    item = contribution(make_submission(WORLD, tokens=100), voters=3)
    roots = tuple(replace(final(*honest()), closing_block=30 + number) for number in range(4))
    parent = open_tally(honest()[0]).model_copy(update={"credited": ((), (), ())})
    context = make_context(roots=roots, parent=parent, closing_block=40, validators=FIVE, quorum=3)
    blob, _ = build_tally(context, [], round_number=0)
    body = open_tally(blob).model_copy(update={"items": (pack_item(item),)})
    blob = zlib.compress(encode(body))
    assert fault_of(blob, proposal_of(body, blob), context) is TallyFault.NOT_CREDITABLE


def test_pending_contributions__accepted_and_not_final() -> None:
    accepted, credited = make_submission(WORLD, WORKERS[0], tokens=100), make_submission(WORLD, WORKERS[1])
    lonely = make_submission(WORLD, WORKERS[2])
    items = [contribution(accepted), contribution(credited), contribution(lonely, voters=1)]
    rows = [row for item in items for row in (item.submission, *item.verdicts)]
    units = partial(
        pending_contributions,
        [*rows, *rows],
        spec=WORLD.spec,
        judges=make_judges(WORLD.spec),
        registrations={
            **make_view(WORLD.spec).registrations,
            WORKERS[0].node: Registration(WORKERS[0].node, None, None, 1, 2, 2),
        },
        credited={place_digest(credited)},
    )
    assert units() == {(WORKERS[0].node, None): 100}
    assert units(past={accepted.step}) == {}


def test_pending_contributions__of_a_key_that_was_replaced() -> None:
    item, old, new = contribution(make_submission(WORLD, WORKERS[0], tokens=100)), WORKERS[0].node, WORKERS[1].node
    units = pending_contributions(
        [item.submission, *item.verdicts],
        spec=WORLD.spec,
        judges=make_judges(WORLD.spec),
        registrations={new: Registration(new, address_of(WALLETS[0]), None, 0, 2, 5, previous=(old,))},
        credited=(),
    )
    assert units == {(old, address_of(WALLETS[0])): 100}


def test_pending_contributions__of_the_validators_in_force() -> None:
    """The owner has appointed one, in the place of those the spec names."""
    item = contribution(make_submission(WORLD, WORKERS[0], tokens=100), voters=1)
    place: dict[str, Any] = {"spec": WORLD.spec, "credited": ()}
    place["registrations"] = make_view(WORLD.spec).registrations
    rows, spec_named = [item.submission, *item.verdicts], make_judges(WORLD.spec)
    assert pending_contributions(rows, **place, judges=spec_named) == {}
    alone = replace(spec_named, validators=spec_named.validators[:1], quorum=1)
    assert sum(pending_contributions(rows, **place, judges=alone).values()) == 100


# -- what is paid ----------------------------------------------------------------------------------------------------


RICH = make_world(make_spec(rewards=RewardSpec(budget="1000", worker=700, validator=100, relay=100, trainer=100)))
"""A run that pays 1000 base units an epoch."""
RELAY = node_key(31)


def rich_context(**changes: Any) -> TallyContext:
    """The first epoch of a run that pays; a relay is registered too."""
    registrations = {
        **make_view(RICH.spec).registrations,
        RELAY.node: Registration(RELAY.node, address_of(WALLETS[2]), None, 1, 2, 2),
    }
    fields: dict[str, Any] = {"spec": RICH.spec, "run": RICH.run, "registrations": registrations, "funds": 5000}
    return make_context(**{**fields, **changes})


def rich_items(*tokens: int) -> list[Contribution]:
    """Accepted submissions of the first workers."""
    return [
        contribution(make_submission(RICH, key, tokens=count), world=RICH)
        for key, count in zip(WORKERS, tokens, strict=False)
    ]


def receipt(client: NodeKey = WORKERS[0], *, step: int = 1, **sizes: int) -> Envelope:
    """A client's receipt for a checkpoint, with all of its 1000 bytes from one relay unless stated otherwise."""
    shares = tuple(ReceivedShare(relay=RELAY.node, size=size) for size in (sizes or {"all": 1000}).values())
    return RICH.row(Receipt(run=RICH.run, client=client.node, step=step, shares=shares), client)


def amounts(blob: bytes) -> dict[tuple[str, str, bool], int]:
    """Cumulative amounts by role and node, and whether the leaf has a wallet."""
    return {(leaf.role, leaf.node, leaf.wallet is not None): leaf.amount for leaf in open_tally(blob).leaves}


def test_build_tally__pot_is_split_by_role_and_units() -> None:
    blob, proposal = build_tally(rich_context(), rich_items(100, 50), round_number=0, receipts=[receipt()])
    check_tally(blob, proposal, rich_context())
    assert amounts(blob) == {
        ("worker", WORKERS[0].node, True): 466,  # 700 * 100 // 150
        ("worker", WORKERS[1].node, True): 233,
        ("validator", VALIDATORS[0].node, True): 50,
        ("validator", VALIDATORS[1].node, True): 50,
        ("relay", RELAY.node, True): 100,
        ("trainer", TRAINER.node, True): 100,
    }
    assert proposal.amount == 999  # what the division leaves over stays in the pool


def test_build_tally__pays_no_more_than_is_funded() -> None:
    _, proposal = build_tally(rich_context(funds=300), rich_items(100), round_number=0)
    assert 0 < proposal.amount <= 300


def test_build_tally__nothing_was_funded__units_alone() -> None:
    _, proposal = build_tally(rich_context(funds=0), rich_items(100), round_number=0)
    assert (proposal.amount, proposal.total) == (0, 104)


def test_check_tally__amount_inflated() -> None:
    blob, _ = build_tally(rich_context(), rich_items(100), round_number=0)
    body = open_tally(blob)
    richer = body.leaves[0].model_copy(update={"amount": body.leaves[0].amount + 1})
    body = body.model_copy(update={"leaves": (richer, *body.leaves[1:])})
    blob = zlib.compress(encode(body))
    assert fault_of(blob, proposal_of(body, blob), rich_context()) is TallyFault.WRONG_UNITS


def test_build_tally__what_was_earned_unlinked_moves_once_linked() -> None:
    """The amount moves, the units stay, and the sum of amounts is unchanged."""
    node = WORKERS[0].node
    unlinked = {**rich_context().registrations, node: Registration(node, None, None, 1, 2, 2)}
    first, proposal = build_tally(rich_context(registrations=unlinked), rich_items(100), round_number=0)
    assert amounts(first)[("worker", node, False)] == 700
    context = rich_context(
        roots=(final(first, proposal),), parent=open_tally(first), closing_block=50, funds=proposal.amount
    )
    second, later = build_tally(context, rich_items(0, 40)[1:], round_number=0)  # nothing left to be paid
    check_tally(second, later, context)
    assert amounts(second)[("worker", node, False)] == 0
    assert amounts(second)[("worker", node, True)] == 700
    assert later.amount == proposal.amount
    leaves = {(leaf.node, leaf.wallet is None): leaf.units for leaf in open_tally(second).leaves}
    assert leaves[(node, True)] == 100


# -- relays ----------------------------------------------------------------------------------------------------------


def _with_receipts(*rows: Envelope) -> TallyFault:
    """Why a tally that counts these receipts is refused."""
    context = rich_context()
    blob, _ = build_tally(context, rich_items(100), round_number=0)
    body = open_tally(blob).model_copy(update={"receipts": tuple(map(row_text, rows))})
    blob = zlib.compress(encode(body))
    return fault_of(blob, proposal_of(body, blob), context)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([receipt(STRANGER)], id="of a client without credit"),
        pytest.param([receipt(a=300, b=300)], id="one relay twice"),
        pytest.param([replace(receipt(), payload=receipt(step=2).payload)], id="forged"),
        pytest.param([rich_items(100)[0].submission], id="not a receipt"),
    ],
)
def test_check_tally__receipt_that_does_not_count(rows: list[Envelope]) -> None:
    assert _with_receipts(*rows) is TallyFault.INVALID_RECEIPT


def test_build_tally__receipt_for_more_than_the_checkpoint_has_is_cut() -> None:
    blob, _ = build_tally(rich_context(), rich_items(100), round_number=0, receipts=[receipt(a=10**12)])
    assert units_of(blob, "relay") == {RELAY.node: 1000}


def test_build_tally__receipt_of_a_checkpoint_of_unknown_size_is_left_out() -> None:
    blob, _ = build_tally(rich_context(published={}), rich_items(100), round_number=0, receipts=[receipt()])
    assert not open_tally(blob).receipts


def test_check_tally__receipt_of_a_checkpoint_not_committed_by_then() -> None:
    assert _with_receipts(receipt(step=3)) is TallyFault.NOT_CREDITABLE


def test_check_tally__receipt_twice() -> None:
    assert _with_receipts(receipt(), receipt(a=1)) is TallyFault.REPEATED_ITEM


def test_build_tally__receipt_counted_in_an_earlier_epoch_is_left_out() -> None:
    blob, proposal = build_tally(rich_context(), rich_items(100), round_number=0, receipts=[receipt()])
    context = rich_context(
        roots=(final(blob, proposal),),
        parent=open_tally(blob),
        closing_block=50,
        commits=make_view(RICH.spec, commits=5).commits,
        published=dict.fromkeys(range(5), 1000),
    )
    later = contribution(make_submission(RICH, WORKERS[0], step=4, policy_step=3, tokens=11), world=RICH)
    second, _ = build_tally(context, [later], round_number=0, receipts=[receipt(), receipt(step=3)])
    assert len(open_tally(second).receipts) == 1
    assert units_of(second, "relay") == {RELAY.node: 2000}


def test_build_tally__relay_that_is_not_registered_earns_nothing() -> None:
    context = rich_context(registrations=make_view(RICH.spec).registrations)
    blob, _ = build_tally(context, rich_items(100), round_number=0, receipts=[receipt()])
    assert units_of(blob, "relay") == {}


# -- validators ------------------------------------------------------------------------------------------------------


def refusal(voters: int = 2, **changes: Any) -> Contribution:
    """A submission that validators found at fault."""
    submission = make_submission(WORLD, WORKERS[2], **changes)
    return contribution(submission, voters=voters, outcome="fault", reason=602)


def test_build_tally__who_found_a_fault_is_credited_and_its_worker_is_not() -> None:
    blob, proposal = build_tally(make_context(), two_contributions(), round_number=0, refusals=[refusal()])
    check_tally(blob, proposal, make_context())
    assert units_of(blob, "validator") == {key.node: 3 for key in VALIDATORS[:2]}
    assert WORKERS[2].node not in units_of(blob, "worker")


def test_build_tally__a_refusal_without_quorum_is_left_out() -> None:
    blob, _ = build_tally(make_context(), two_contributions(), round_number=0, refusals=[refusal(voters=1)])
    assert units_of(blob, "validator") == {key.node: 2 for key in VALIDATORS[:2]}


def test_check_tally__refusal_no_quorum_agrees_on() -> None:
    item = pack_item(refusal(voters=1))
    assert fault_of(*lie(lambda body: {"refusals": (item,)})) is TallyFault.INVALID_REFUSAL


def test_build_tally__a_refusal_is_credited_once() -> None:
    blob, proposal = build_tally(make_context(), two_contributions(), round_number=0, refusals=[refusal(), refusal()])
    assert len(open_tally(blob).refusals) == 1
    context = make_context(roots=(final(blob, proposal),), parent=open_tally(blob), closing_block=50)
    assert not open_tally(build_tally(context, [], round_number=0, refusals=[refusal()])[0]).refusals


SEALING = make_world(make_spec(checks=CheckSpec(seals=True)))


def sealed_item(*sees: str) -> Contribution:
    """Three acceptances of one submission. For each validator, the seals that its opening lists
    (`"12"`: those of these two)."""
    submission = make_submission(SEALING, WORKERS[0])
    bare = [make_verdict(submission, salt=f"{number:032x}") for number in range(3)]
    seals = [seal_of(verdict, key.node) for verdict, key in zip(bare, VALIDATORS, strict=True)]
    rows = tuple(
        SEALING.row(verdict.model_copy(update={"seen": tuple(seals[int(other)][:32] for other in seen)}), key)
        for verdict, key, seen in zip(bare, VALIDATORS, sees, strict=True)
    )
    return Contribution(SEALING.row(submission, WORKERS[0]), rows)


def test_build_tally__sealed__earns_who_was_seen_by_another() -> None:
    context = make_context(spec=SEALING.spec, run=SEALING.run)
    blob, _ = build_tally(context, [sealed_item("1", "0", "01")], round_number=0)
    assert units_of(blob, "validator") == {key.node: 1 for key in VALIDATORS[:2]}


def test_build_tally__sealed__own_word_for_oneself_is_not_enough() -> None:
    context = make_context(spec=SEALING.spec, run=SEALING.run)
    blob, _ = build_tally(context, [sealed_item("0", "", "2")], round_number=0)
    assert units_of(blob, "validator") == {}


def test_build_tally__set_of_validators_at_the_closing_block() -> None:
    """Verdicts of a validator that left the set before no longer count."""
    context = make_context(validators=tuple(key.node for key in VALIDATORS[1:]), quorum=2)
    assert not open_tally(build_tally(context, two_contributions(), round_number=0)[0]).items


def make_set(*validators: str, quorum: int = 2) -> ValidatorSet:
    """A set of validators by name."""
    return ValidatorSet(0, tuple(Operator(name, "", "") for name in validators), quorum, 1)


@pytest.mark.parametrize(
    ("in_force", "counts"),
    [
        pytest.param("abc", "abc", id="nothing has changed"),
        pytest.param("bcd", "abc", id="a quorum of them is left"),
        pytest.param("cde", "cde", id="too few are left to accept anything"),
        pytest.param("def", "def", id="none is left"),
    ],
)
def test_bench_of__closing_set_while_a_quorum_of_it_is_left(in_force: str, counts: str) -> None:
    assert bench_of(make_set(*"abc"), make_set(*in_force)) == make_set(*counts)


def test_proposer__is_of_those_who_can_attest() -> None:
    context = make_context(in_force=("d", "e"))
    assert [context.proposer(number) for number in range(3)] == ["d", "e", "d"]


# -- how much a tally holds ------------------------------------------------------------------------------------------


def crowd(role: Role, count: int) -> Iterator[TallyLeaf]:
    """Leaves of nodes that are never heard of again."""
    for number in range(count):
        key = sha256(f"{role} {number}".encode())
        yield TallyLeaf(
            role=role, node=node_from_public_key(bytes.fromhex(key)), wallet="0x" + key[:40], units=1, amount=10**15
        )


def after_a_crowd(*leaves: TallyLeaf, **changes: Any) -> TallyContext:
    """The epoch after one that left these leaves."""
    blob, proposal = build_tally(rich_context(), [], round_number=0)
    parent = open_tally(blob).model_copy(update={"leaves": in_tree_order(leaves)})
    promised = sum(leaf.amount for leaf in leaves)
    fields: dict[str, Any] = {"roots": (final(blob, proposal),), "parent": parent, "closing_block": 50}
    return rich_context(funds=promised + 5000, **{**fields, **changes})


def limits(*, worker: int = 10, relay: int = 10, **changes: int) -> TallyLimits:
    """Few leaves."""
    return TallyLimits(leaves={"worker": worker, "relay": relay}, **changes)


def later_item(key: NodeKey, tokens: int) -> Contribution:
    """Work in step 4, of the second epoch."""
    return contribution(make_submission(RICH, key, step=4, policy_step=3, tokens=tokens), world=RICH)


LATER = {"commits": make_view(RICH.spec, commits=5).commits, "published": dict.fromkeys(range(5), 1000)}


def test_build_tally__as_many_leaves_as_there_may_be__fits() -> None:
    full = [leaf for role, most in MOST_LEAVES.items() for leaf in crowd(role, most)]
    known = full[0].model_copy(update={"node": WORKERS[0].node, "wallet": address_of(WALLETS[0])})
    context = after_a_crowd(known, *full[1:], **LATER)
    blob, proposal = build_tally(context, [later_item(WORKERS[0], 100), later_item(WORKERS[1], 50)], round_number=0)
    body = check_tally(blob, proposal, context)
    assert len(encode(body)) < MAX_BODY // 2
    assert len(body.items) == 2
    assert units_of(blob, "worker")[WORKERS[0].node] == 101
    assert WORKERS[1].node not in units_of(blob, "worker")  # came when there was no room left


def test_limits__leaves_at_their_longest_leave_a_quarter_of_the_body_to_rows() -> None:
    longest = next(crowd("worker", 1)).model_copy(
        update={"role": "validator", "units": 2**128 - 1, "amount": 2**128 - 1}
    )
    assert len(encode(longest)) + 1 <= LEAF_BYTES
    assert 2 * sum(MOST_LEAVES.values()) * LEAF_BYTES < MAX_BODY * 3 // 4  # twice: each may get a wallet later


def test_build_tally__relays_past_the_bound_keep_no_worker_and_no_known_relay_out() -> None:
    known = TallyLeaf(role="relay", node=RELAY.node, wallet=address_of(WALLETS[2]), units=1, amount=0)
    shares = tuple(ReceivedShare(relay=key.node, size=500) for key in (RELAY, node_key(32)))
    named = RICH.row(Receipt(run=RICH.run, client=WORKERS[0].node, step=4, shares=shares), WORKERS[0])
    registrations = {
        **rich_context().registrations,
        node_key(32).node: Registration(node_key(32).node, None, None, 1, 2, 2),
    }
    context = after_a_crowd(
        known, *crowd("relay", 5), limits=limits(relay=6), **{**LATER, "registrations": registrations}
    )
    blob, proposal = build_tally(context, [later_item(WORKERS[0], 100)], round_number=0, receipts=[named])
    check_tally(blob, proposal, context)
    paid = amounts(blob)
    assert paid[("relay", RELAY.node, True)] == 100  # the relays' whole part
    assert paid[("worker", WORKERS[0].node, True)] == 700
    assert node_key(32).node not in units_of(blob, "relay")


def test_build_tally__last_leaf_is_of_who_did_most() -> None:
    context = after_a_crowd(*crowd("worker", 3), limits=limits(worker=4), **LATER)
    items = [later_item(key, tokens) for key, tokens in zip(WORKERS, (10, 30, 20), strict=True)]
    blob, proposal = build_tally(context, items, round_number=0)
    check_tally(blob, proposal, context)
    assert {node: units for node, units in units_of(blob, "worker").items() if units > 1} == {WORKERS[1].node: 30}
    assert units_of(blob, "validator") == {key.node: 3 for key in VALIDATORS[:2]}  # who judged is credited all the same


def test_check_tally__leaf_past_the_bound() -> None:
    few = after_a_crowd(*crowd("worker", 3), limits=limits(worker=3), **LATER)
    blob, proposal = build_tally(replace(few, limits=limits()), [later_item(WORKERS[0], 100)], round_number=0)
    assert fault_of(blob, proposal, few) is TallyFault.WRONG_UNITS


def test_build_tally__linked_when_no_leaf_is_left__is_paid_all_the_same() -> None:
    node = WORKERS[0].node
    unlinked = TallyLeaf(role="worker", node=node, wallet=None, units=100, amount=700)
    context = after_a_crowd(unlinked, *crowd("worker", 2), limits=limits(worker=3))
    blob, proposal = build_tally(context, [], round_number=0)
    check_tally(blob, proposal, context)
    assert (amounts(blob)[("worker", node, False)], amounts(blob)[("worker", node, True)]) == (0, 700)


def test_build_tally__wallet_after_wallet__leaves_for_them_have_a_bound_too() -> None:
    unlinked = TallyLeaf(role="worker", node=WORKERS[0].node, wallet=None, units=100, amount=700)
    context = after_a_crowd(unlinked, *crowd("worker", 5), limits=limits(worker=3))
    blob, proposal = build_tally(context, [], round_number=0)
    check_tally(blob, proposal, context)
    assert amounts(blob)[("worker", WORKERS[0].node, False)] == 700  # waits, and is lost to nobody else


def test_build_tally__what_leaves_and_places_take_is_not_there_for_rows() -> None:
    """What does not fit stays creditable: its places are not used up."""
    item, known = later_item(WORKERS[0], 100), tuple(crowd("worker", 10))
    rows = sum(map(len, rows_of(pack_item(item))))
    narrow = limits(worker=10, relay=0, body=HEADER_BYTES + 10 * LEAF_BYTES + rows)
    context = after_a_crowd(*known, limits=narrow, **LATER)
    blob, proposal = build_tally(context, [item], round_number=0)
    assert not check_tally(blob, proposal, context).items
    assert open_tally(blob).credited[-1] == ()
    wider = replace(context, limits=replace(narrow, body=narrow.body + 3 * ROW_BYTES + PLACE_BYTES))
    blob, proposal = build_tally(wider, [item], round_number=0)
    assert len(check_tally(blob, proposal, wider).items) == 1
    assert len(encode(open_tally(blob))) <= wider.limits.body
