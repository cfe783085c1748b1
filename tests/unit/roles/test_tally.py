"""The tally: built, checked, and refused for every lie its proposer can put in."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST, encode, sha256
from dht.envelope import Envelope, to_bytes
from ledger.merkle import merkle_root
from ledger.records import FinalRoot, Leaf, Proposal, Registration
from ledger.wallet import address_of
from roles.messages import Submission
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
from tests.builders import (
    STRANGER,
    VALIDATORS,
    WALLETS,
    WORKERS,
    World,
    make_submission,
    make_verdict,
    make_view,
    make_world,
)

WORLD = make_world()


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
        "commits": view.commits,
        "registrations": view.registrations,
    }
    return TallyContext(**{**fields, **changes})


def contribution(submission: Submission, *, world: World = WORLD, voters: int = 2, **verdict: Any) -> Contribution:
    """A submission and the acceptances of the first validators."""
    key = next(key for key in (*WORKERS, STRANGER) if key.node == submission.node)
    verdicts = tuple(world.row(make_verdict(submission, **verdict), validator) for validator in VALIDATORS[:voters])
    return Contribution(world.row(submission, key), verdicts)


def two_contributions() -> list[Contribution]:
    """A hundred units of the first worker, fifty of the second."""
    return [
        contribution(make_submission(WORLD, WORKERS[0], tokens=100)),
        contribution(make_submission(WORLD, WORKERS[1], tokens=50)),
    ]


def honest() -> tuple[bytes, Proposal]:
    """A tally nobody can object to."""
    return build_tally(make_context(), two_contributions(), round_number=0)


def final(blob: bytes, proposal: Proposal) -> FinalRoot:
    """The ledger's record of a tally."""
    return FinalRoot(
        proposal.epoch, proposal.round, proposal.closing_block, proposal.root, proposal.total, proposal.blob, 40, ()
    )


def lie(change: Callable[[TallyBody], dict[str, Any]]) -> tuple[bytes, Proposal]:
    """The honest tally with some fields of the proposer's own, root and total made to fit."""
    body = open_tally(honest()[0])
    body = body.model_copy(update=change(body))
    blob = zlib.compress(encode(body))
    return blob, proposal_of(body, blob)


def fault_of(blob: bytes, proposal: Proposal, context: TallyContext | None = None, **known: Any) -> TallyFault:
    """Why a validator refuses."""
    with pytest.raises(TallyRefused) as caught:
        check_tally(blob, proposal, context or make_context(), **known)
    return caught.value.fault


def test_build_tally__checked_and_worth_what_was_accepted() -> None:
    blob, proposal = honest()
    check_tally(blob, proposal, make_context())
    leaves = [
        Leaf(WORKERS[0].node, address_of(WALLETS[0]), 100),
        Leaf(WORKERS[1].node, address_of(WALLETS[1]), 50),
    ]
    assert (proposal.root, proposal.total, proposal.blob) == (merkle_root(leaves), 150, sha256(blob))


def test_build_tally__leaves_out_what_no_quorum_accepted() -> None:
    items = [*two_contributions(), contribution(make_submission(WORLD, WORKERS[2], tokens=7), voters=1)]
    assert build_tally(make_context(), items, round_number=0)[1].total == 150


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
    assert (proposed.epoch, proposed.parent_root, proposed.total) == (1, proposal.root, 161)
    assert len(open_tally(second).items) == 1  # what was credited before is left out


def test_check_tally__omission_is_no_fault() -> None:
    blob, proposal = build_tally(make_context(), two_contributions()[:1], round_number=0)
    check_tally(blob, proposal, make_context())


def test_check_tally__units_inflated() -> None:
    def inflate(body: TallyBody) -> dict[str, Any]:
        first = body.leaves[0]
        richer = TallyLeaf(node=first.node, wallet=first.wallet, units=first.units + 1)
        return {"leaves": (richer, *body.leaves[1:])}

    assert fault_of(*lie(inflate)) is TallyFault.WRONG_UNITS


def test_check_tally__leaf_of_somebody_who_did_nothing() -> None:
    def favour(body: TallyBody) -> dict[str, Any]:
        return {"leaves": (*body.leaves, TallyLeaf(node=STRANGER.node, wallet=None, units=1))}

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
    """Also under another digest: it is the node's index that is credited once."""
    blob, proposal = honest()
    context = make_context(roots=(final(blob, proposal),), parent=open_tally(blob), closing_block=50)
    fresh = replace(context, parent=open_tally(blob).model_copy(update={"credited": ()}))
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


@pytest.mark.parametrize("changes", [{"root": "ab" * 32}, {"total": 151}, {"blob": "ab" * 32}])
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
    assert make_context(roots=roots[:2]).oldest_block == -1
    assert make_context(roots=roots).oldest_block == 10


def test_pending_contributions__accepted_and_not_final() -> None:
    accepted, credited = make_submission(WORLD, WORKERS[0], tokens=100), make_submission(WORLD, WORKERS[1])
    lonely = make_submission(WORLD, WORKERS[2])
    items = [contribution(accepted), contribution(credited), contribution(lonely, voters=1)]
    rows = [row for item in items for row in (item.submission, *item.verdicts)]
    units = pending_contributions(
        [*rows, *rows],
        spec=WORLD.spec,
        run=WORLD.run,
        validators=[key.node for key in VALIDATORS],
        registrations={
            **make_view(WORLD.spec).registrations,
            WORKERS[0].node: Registration(WORKERS[0].node, None, None, 1, 2, 2),
        },
        credited={place_digest(credited)},
    )
    assert units == {(WORKERS[0].node, None): 100}
