"""The gate: what the trusted state accepts, and that a refusal leaves it unchanged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.errors import Malformed
from dht.identity import NodeKey
from ledger.records import ValidatorSet
from roles.messages import NodeRecord, OpenStep, SealedVerdict, Submission, TallyRow, head_key, open_row
from roles.objections import FREE
from roles.rules import Ignore, Reason, Reject
from roles.spec import RewardSpec
from roles.trusted import MAX_DIGESTS_PER_INDEX, MAX_INDICES, MAX_ROUNDS, TrustedState
from roles.worker.generation import submission_digest
from tests.builders import (
    NOW,
    STRANGER,
    TRAINER,
    VALIDATORS,
    WORKERS,
    World,
    make_head,
    make_row,
    make_spec,
    make_submission,
    make_verdict,
    make_view,
    make_world,
    manifest_of,
    node_key,
)

WORKER = WORKERS[0]


def admit(world: World, submission: Submission, **changes: Any) -> str:
    """Offer a submission of the first worker; its digest."""
    return world.trusted.admit_submission(world.row(submission, WORKER, **changes)).digest


def accept(world: World, submission: Submission, voters: int = 2, **changes: Any) -> None:
    """Acceptances of the first validators."""
    for key in VALIDATORS[:voters]:
        world.trusted.admit_verdict(world.row(make_verdict(submission, **changes), key))


def refused(world: World, submission: Submission) -> Reject | Ignore:
    """Assert that the gate refuses and leaves everything unchanged. Returns how."""
    before = world.state()
    with pytest.raises((Reject, Ignore)) as caught:
        admit(world, submission)
    assert world.state() == before
    error = caught.value
    assert isinstance(error, Reject | Ignore)
    return error


# -- submissions ------------------------------------------------------------------------------------------------------


def test_admit_submission__valid() -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    assert list(world.trusted.submissions) == [digest]


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"policy_step": 2, "policy": manifest_of(2)}, Reject, Reason.STALE_POLICY),
        ({"policy": manifest_of(1)}, Reject, Reason.WRONG_POLICY),
        ({"groups": 3}, Reject, Reason.WRONG_COUNTS),
        ({"completions": 9}, Reject, Reason.WRONG_COUNTS),
        ({"size": 9 * 2**20}, Reject, Reason.BLOB_TOO_LARGE),
        ({"step": 2}, Ignore, Reason.UNKNOWN_STEP),
        ({"index": 4}, Ignore, Reason.OVER_LIMIT),
        ({"index": 1}, Ignore, Reason.GAP),
        ({"predecessor": "ab" * 32}, Ignore, Reason.GAP),
    ],
)
def test_admit_submission__refused(changes: dict[str, Any], kind: type[Exception], reason: Reason) -> None:
    world = make_world()
    error = refused(world, make_submission(world, **changes))
    assert (type(error), error.reason) == (kind, reason)


def test_admit_submission__ignore_unregistered() -> None:
    world = make_world()
    submission = make_submission(world, STRANGER)
    with pytest.raises(Ignore) as caught:
        world.trusted.admit_submission(world.row(submission, STRANGER))
    assert caught.value.reason is Reason.UNREGISTERED


def test_admit_submission__ignore_while_the_policy_is_not_committed() -> None:
    world = make_world(commits=1, head=make_head(2))
    error = refused(world, make_submission(world, step=2, policy_step=1, policy=manifest_of(1)))
    assert (type(error), error.reason) == (Ignore, Reason.POLICY_UNCOMMITTED)


def test_admit_submission__ignore_while_the_beacon_block_is_unknown() -> None:
    world = make_world()
    world.trusted.admit_view(replace(make_view(world.spec), beacons={}))
    assert refused(world, make_submission(world)).reason is Reason.BEACON_UNKNOWN


# -- a key that was replaced ------------------------------------------------------------------------------------------

NEW = node_key(24)


def replace_key(world: World) -> None:
    """Replace the first worker's key on the ledger."""
    view = world.trusted.view
    assert view is not None
    held = replace(view.registrations[WORKER.node], node=NEW.node, previous=(WORKER.node,))
    others = {node: item for node, item in view.registrations.items() if node != WORKER.node}
    beacons = {**view.beacons, NEW.node: view.beacons[WORKER.node]}
    world.trusted.admit_view(replace(view, registrations={**others, NEW.node: held}, beacons=beacons))


def test_seed_of__a_new_key_draws_what_the_first_one_did() -> None:
    world = make_world()
    drawn = [world.seed(WORKER, index=index) for index in range(4)]
    replace_key(world)
    assert [world.seed(NEW, index=index) for index in range(4)] == drawn
    assert [world.seed(WORKER, index=index) for index in range(4)] == drawn  # for what it had handed in


def test_admit_submission__ignore_what_a_replaced_key_signs_from_now_on() -> None:
    world = make_world()
    replace_key(world)
    error = refused(world, make_submission(world))
    assert (type(error), error.reason) == (Ignore, Reason.UNREGISTERED)


def test_admit_submission__what_a_replaced_key_had_handed_in_stands_and_the_new_one_goes_on() -> None:
    world = make_world()
    submission = make_submission(world)
    before = admit(world, submission)
    replace_key(world)
    accept(world, submission)
    following = make_submission(world, NEW, index=1, predecessor=before)
    after = world.trusted.admit_submission(world.row(following, NEW)).digest
    accept(world, following)
    assert [item.digest for item in world.trusted.accepted()] == [before, after]


def test_admit_submission__of_a_replaced_key__that_a_quorum_has_judged_was_handed_in_before() -> None:
    world = make_world()
    submission = make_submission(world)
    replace_key(world)
    first, second = (world.row(make_verdict(submission), key) for key in VALIDATORS[:2])
    world.trusted.admit_verdict(first)
    assert refused(world, submission).reason is Reason.UNREGISTERED
    world.trusted.admit_verdict(second)
    digest = admit(world, submission)
    assert world.trusted.is_accepted(digest)


def test_admit_submission__of_a_replaced_key__that_the_new_one_follows_was_handed_in_before() -> None:
    """Also through others: a node that saw none of them before the rotation admits all."""
    world = make_world()
    replace_key(world)
    first = make_submission(world)
    second = make_submission(world, index=1, predecessor=submission_digest(first))
    third = make_submission(world, NEW, index=2, predecessor=submission_digest(second))
    thiefs = make_submission(world, index=1, predecessor=submission_digest(first), blob="cd" * 32)
    rows = [world.row(first, WORKER), world.row(thiefs, WORKER), world.row(second, WORKER), world.row(third, NEW)]
    for _ in range(3):  # what is ignored is offered again
        for row in rows:
            with suppress(Ignore):
                world.trusted.admit_submission(row)
    assert set(world.trusted.submissions) == {submission_digest(each) for each in (first, second, third)}


def test_admit_submission__a_new_key_has_no_second_go_at_an_index() -> None:
    world = make_world()
    submission = make_submission(world)
    first = admit(world, submission)
    accept(world, submission)
    replace_key(world)
    again = make_submission(world, NEW)
    second = world.trusted.admit_submission(world.row(again, NEW)).digest
    accept(world, again)
    assert world.trusted.known_digests(NEW.node, 1, 0) == (first, second)
    assert world.trusted.rival(again, second) == first
    assert [item.digest for item in world.trusted.accepted()] == [first]
    assert world.trusted.equivocations(WORKER.node) == world.trusted.equivocations(NEW.node) == 1


def test_admit_submission__said_again_names_the_relays_that_have_it_now() -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission, hint=b"12D3KooWone,12D3KooWtwo")
    assert admit(world, submission, hint=b"12D3KooWthree", sequence=NOW + 1) == digest
    assert world.trusted.submissions[digest].relays == ("12D3KooWthree",)
    admit(world, submission, hint=b"12D3KooWone", sequence=NOW - 1)  # an older row, found late
    assert world.trusted.submissions[digest].relays == ("12D3KooWthree",)


def test_admit_head__limit_beyond_reason_is_cut() -> None:
    """However far apart admitted indices are according to the trainer, finding the previous one costs little."""
    world = make_world(head=make_head(open_steps=(OpenStep(step=1, limit=1_000_000, share=1),)))
    assert world.trusted.opened[1].limit == MAX_INDICES
    error = refused(world, make_submission(world, index=MAX_INDICES))
    assert (type(error), error.reason) == (Ignore, Reason.OVER_LIMIT)


def test_admit_submission__reject_index_the_share_does_not_admit() -> None:
    world = make_world(head=make_head(open_steps=(OpenStep(step=1, limit=4, share=0),)))
    error = refused(world, make_submission(world))
    assert (type(error), error.reason) == (Reject, Reason.NOT_ADMITTED)


def test_admit_submission__gap_closes_when_the_predecessor_arrives__top_22() -> None:
    world = make_world()
    first = make_submission(world)
    second = make_submission(world, index=1, predecessor=submission_digest(first))
    assert refused(world, second).reason is Reason.GAP
    admit(world, first)
    admit(world, second)
    assert len(world.trusted.submissions) == 2


def test_admit_submission__policy_is_judged_by_its_own_step_not_by_the_head() -> None:
    world = make_world(commits=6)
    world.trusted.admit_head(world.row(make_head(3), TRAINER, sequence=2**50))
    admit(world, make_submission(world, step=1))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda w, s: w.row(s, WORKER, kind="verdict/2"), id="kind"),
        pytest.param(lambda w, s: w.row(s, WORKER, run="ab" * 32), id="run"),
        pytest.param(lambda w, s: w.row(s, WORKER, record_key=head_key(w.run)), id="key"),
        pytest.param(lambda w, s: w.row(s, WORKER, subkey=f"{WORKER.node}:7"), id="subkey"),
        pytest.param(lambda w, s: w.row(s, WORKER, payload=encode(s) + b" "), id="not canonical"),
        pytest.param(lambda w, s: w.row(s.model_copy(update={"run": "ab" * 32}), WORKER), id="run inside"),
        pytest.param(lambda w, s: w.row(make_head(), TRAINER), id="another message"),
        pytest.param(lambda w, s: _for_another(w, s), id="signed for somebody else"),
    ],
)
def test_admit_submission__replayed_elsewhere__live_10(spoil: Callable[[World, Submission], Envelope]) -> None:
    world = make_world()
    before = world.state()
    with pytest.raises(Malformed):
        world.trusted.admit_submission(spoil(world, make_submission(world)))
    assert world.state() == before


def _for_another(world: World, submission: Submission) -> Envelope:
    row = world.row(submission, WORKER)
    return seal(
        WORKERS[1],
        run=row.run,
        kind=row.kind,
        record_key=row.key,
        subkey=f"{WORKERS[1].node}:{submission.index}",
        sequence=row.sequence,
        expiration=row.expiration,
        payload=row.payload,
    )


def test_admit_submission__equivocations_are_counted_and_bounded() -> None:
    world = make_world()
    for number in range(MAX_DIGESTS_PER_INDEX):
        admit(world, make_submission(world, tokens=100 + number))
    assert refused(world, make_submission(world, tokens=1)).reason is Reason.REPEATED_EQUIVOCATION
    assert world.trusted.equivocations(WORKER.node) == MAX_DIGESTS_PER_INDEX - 1


def test_readmit_submission__though_its_step_was_never_opened_here() -> None:
    world = make_world()
    row = world.row(make_submission(world), WORKER)
    again = TrustedState(world.spec)
    again.admit_view(make_view(world.spec))
    assert again.readmit_submission(row).digest == row.digest


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_admit_verdict__quorum_accepts() -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    accept(world, submission, voters=1)
    assert not world.trusted.is_accepted(digest)
    world.trusted.admit_verdict(world.row(make_verdict(submission), VALIDATORS[1]))
    assert world.trusted.is_accepted(digest)


@pytest.mark.parametrize("key", [STRANGER, WORKER, TRAINER])
def test_admit_verdict__reject_who_is_no_validator(key: Any) -> None:
    world = make_world()
    submission = make_submission(world)
    admit(world, submission)
    before = world.state()
    with pytest.raises(Reject) as caught:
        world.trusted.admit_verdict(world.row(make_verdict(submission), key))
    assert caught.value.reason is Reason.NOT_A_VALIDATOR
    assert world.state() == before


def test_admit_verdict__one_validator_twice_is_one() -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    for sequence in (1, 2, 3):
        world.trusted.admit_verdict(world.row(make_verdict(submission), VALIDATORS[0], sequence=sequence))
    assert not world.trusted.is_accepted(digest)


def test_admit_verdict__ignore_older() -> None:
    world = make_world()
    submission = make_submission(world)
    world.trusted.admit_verdict(world.row(make_verdict(submission, outcome="soft", reason=201), VALIDATORS[0]))
    with pytest.raises(Ignore):
        world.trusted.admit_verdict(world.row(make_verdict(submission), VALIDATORS[0], sequence=5))


def test_admit_verdict__fault_is_answered_by_a_quorum_that_audited() -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    accept(world, submission, audited=False)
    world.trusted.admit_verdict(world.row(make_verdict(submission, outcome="fault", reason=602), VALIDATORS[2]))
    assert not world.trusted.is_accepted(digest)
    assert world.trusted.disputed() == {digest}
    for key in VALIDATORS[:2]:
        world.trusted.admit_verdict(world.row(make_verdict(submission), key, sequence=2**50))
    assert world.trusted.is_accepted(digest)
    assert not world.trusted.disputed()


@pytest.mark.parametrize(
    ("said", "doubted"),
    [
        ({"outcome": "fault", "reason": 602, "audited": False}, True),
        ({"outcome": "soft", "reason": 201, "audited": True}, True),
        ({"outcome": "soft", "reason": 201, "audited": False}, False),
        ({}, False),
    ],
)
def test_is_doubted__until_a_quorum_that_audited_answers(said: dict[str, Any], doubted: bool) -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    assert not world.trusted.is_doubted(digest)
    world.trusted.admit_verdict(world.row(make_verdict(submission, **said), VALIDATORS[2]))
    assert world.trusted.is_doubted(digest) is doubted
    accept(world, submission)
    assert not world.trusted.is_doubted(digest)


def test_is_doubted__soft_refusals_that_no_quorum_upholds_have_a_budget() -> None:
    world = make_world()
    submission = make_submission(world)

    def say(validator: int, number: int, *, outcome: str = "soft", **changes: Any) -> None:
        reason = int(Reason.ACCEPTED if outcome == "accept" else Reason.JOINED_UNCERTAIN)
        verdict = make_verdict(submission, outcome=outcome, reason=reason)
        verdict = verdict.model_copy(update={"submission": f"{number:064x}"})
        world.trusted.admit_verdict(world.row(verdict, VALIDATORS[validator], **changes))

    def doubted() -> list[int]:
        return [number for number in range(FREE + 3) if world.trusted.is_doubted(f"{number:064x}")]

    for number in range(FREE + 3):
        say(2, number)
    assert doubted() == list(range(FREE))
    say(2, 0, outcome="accept", sequence=2**50)  # taken back, and spent all the same
    assert doubted() == list(range(1, FREE))
    say(1, 1)  # a quorum refuses: it was no lie, and counts no more
    assert doubted() == list(range(1, FREE + 1))
    say(0, FREE + 2)
    assert doubted() == [*range(1, FREE + 1), FREE + 2]


def test_is_doubted__a_fault_has_to_be_answered_however_many_there_were() -> None:
    world = make_world()
    submission = make_submission(world)
    for number in range(FREE + 1):
        verdict = make_verdict(submission, outcome="fault", reason=602)
        verdict = verdict.model_copy(update={"submission": f"{number:064x}"})
        world.trusted.admit_verdict(world.row(verdict, VALIDATORS[2]))
    assert world.trusted.is_doubted(f"{FREE:064x}")


@pytest.mark.parametrize("changes", [{"tokens": 101}, {"index": 1}, {"node": WORKERS[1].node}])
def test_admit_verdict__that_misstates_what_it_judges_counts_for_nothing(changes: dict[str, Any]) -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    accept(world, submission, **changes)
    assert not world.trusted.is_accepted(digest)


def test_admit_verdict__lying_validator_cannot_take_another_nodes_place() -> None:
    """The last acceptance names another node; that node's own submission must still be acceptable."""
    world = make_world()
    mine, theirs = make_submission(world, WORKERS[1]), make_submission(world)
    digest = world.trusted.admit_submission(world.row(mine, WORKERS[1])).digest
    admit(world, theirs)
    accept(world, theirs)
    world.trusted.admit_verdict(world.row(make_verdict(theirs, node=WORKERS[1].node), VALIDATORS[2]))
    accept(world, mine)
    assert world.trusted.is_accepted(digest)


def test_admit_verdict__before_its_submission() -> None:
    world = make_world()
    submission = make_submission(world)
    accept(world, submission)
    digest = admit(world, submission)
    assert world.trusted.is_accepted(digest)
    assert world.trusted.rival(make_submission(world, tokens=5), "ab" * 32) == digest


def test_is_accepted__first_to_reach_quorum_stands() -> None:
    world = make_world()
    first, second = make_submission(world), make_submission(world, tokens=99)
    digests = [admit(world, first), admit(world, second)]
    accept(world, second)
    accept(world, first)
    assert [world.trusted.is_accepted(digest) for digest in digests] == [False, True]
    assert world.trusted.rival(first, digests[0]) == digests[1]


def test_admit_verdict__flood_about_submissions_that_do_not_exist_is_bounded() -> None:
    world = make_world()
    world.trusted = TrustedState(world.spec, most_early=3)
    world.trusted.admit_view(make_view(world.spec))
    world.trusted.admit_head(world.row(make_head(), TRAINER))
    real = make_submission(world)

    def lie(number: int) -> Envelope:
        verdict = make_verdict(real, outcome="fault", reason=602)
        return world.row(verdict.model_copy(update={"submission": f"{number:064x}"}), VALIDATORS[2])

    for number in range(3):
        world.trusted.admit_verdict(lie(number))
    with pytest.raises(Ignore) as caught:
        world.trusted.admit_verdict(lie(4))
    assert caught.value.reason is Reason.GAP  # kept, and looked at again
    assert len(world.trusted.standings) == 3
    accept(world, real)  # others are not held up by it, early as they are
    digest = admit(world, real)
    assert world.trusted.is_accepted(digest)
    world.trusted.admit_verdict(world.row(make_verdict(real), VALIDATORS[2]))  # nor the liar, where there is something
    world.trusted.forget_before(2)
    assert not world.trusted.standings
    world.trusted.admit_verdict(lie(4))


@pytest.mark.parametrize("outcomes", [["accept", "fault", "accept", "soft"], ["soft", "accept", "fault"]])
def test_admit_verdict__a_validator_that_alternates_moves_only_its_own_vote(outcomes: list[str]) -> None:
    world = make_world()
    submission = make_submission(world)
    digest = admit(world, submission)
    accept(world, submission)
    for number, outcome in enumerate(outcomes):
        world.trusted.admit_verdict(
            world.row(make_verdict(submission, outcome=outcome), VALIDATORS[2], sequence=2**50 + number)
        )
        assert world.trusted.is_accepted(digest)
        assert not world.trusted.disputed()
    assert len(world.trusted.standings[digest].verdicts) == 3


# -- what a DHT node keeps for others ---------------------------------------------------------------------------------


def node_record(world: World, node: str) -> NodeRecord:
    return NodeRecord(node=node, role="relay", http="http://evil.example", software="x", boot="ab" * 8)


def test_may_be_stored__rows_in_their_own_place_by_who_may_say_them() -> None:
    world = make_world()
    submission = make_submission(world)
    for message, key in (
        (submission, WORKER),
        (make_verdict(submission), VALIDATORS[0]),
        (make_head(), TRAINER),
        (node_record(world, STRANGER.node), STRANGER),
    ):
        assert world.trusted.may_be_stored(world.row(message, key))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda w: w.row(make_submission(w), WORKER, record_key=f"{w.run}/junk"), id="made-up key"),
        pytest.param(lambda w: w.row(node_record(w, STRANGER.node), STRANGER, record_key=head_key(w.run)), id="place"),
        pytest.param(lambda w: w.row(node_record(w, STRANGER.node), STRANGER, payload=b"junk"), id="payload"),
        pytest.param(lambda w: w.row(make_submission(w, step=2**40), WORKER), id="made-up step"),
        pytest.param(lambda w: w.row(make_submission(w, STRANGER), STRANGER), id="unregistered"),
        pytest.param(lambda w: w.row(make_verdict(make_submission(w)), WORKER), id="no validator"),
        pytest.param(lambda w: w.row(make_head(), VALIDATORS[0]), id="no trainer"),
        pytest.param(lambda w: w.row(node_record(w, WORKER.node), STRANGER, subkey=STRANGER.node), id="another's"),
    ],
)
def test_may_be_stored__refused__dht_16_live_06(make: Callable[[World], Envelope]) -> None:
    world = make_world()
    assert not world.trusted.may_be_stored(make(world))


def test_open_row__record_that_speaks_for_another_node__live_06() -> None:
    """Otherwise a stranger could redirect a relay's clients, and get the relay blamed for what they are served."""
    world = make_world()
    row = world.row(node_record(world, WORKER.node), STRANGER, subkey=STRANGER.node)
    with pytest.raises(Malformed, match="not its own"):
        open_row(row, run=world.run, buckets=1)


# -- heads and views --------------------------------------------------------------------------------------------------


def test_admit_head__reject_who_does_not_lead__live_09() -> None:
    world = make_world()
    with pytest.raises(Reject) as caught:
        world.trusted.admit_head(world.row(make_head(9), VALIDATORS[0]))
    assert caught.value.reason is Reason.NOT_THE_LEADER


def test_admit_head__never_goes_back() -> None:
    world = make_world(head=make_head(3))
    with pytest.raises(Ignore):
        world.trusted.admit_head(world.row(make_head(2), TRAINER, sequence=2**50))
    assert world.trusted.head == make_head(3)


def test_admit_head__share_is_fixed_and_the_limit_only_rises() -> None:
    world = make_world()
    steps = (OpenStep(step=1, limit=2, share=5),)
    world.trusted.admit_head(world.row(make_head(open_steps=steps), TRAINER, sequence=2**50))
    assert world.trusted.opened[1] == make_head().open_steps[0]


def test_admit_view__reject_a_ledger_with_other_terms() -> None:
    world = make_world()
    other = make_spec(name="other", quorum=3)
    with pytest.raises(Reject):
        world.trusted.admit_view(make_view(other))


@pytest.mark.parametrize("field", ["operator", "payout"])
@pytest.mark.parametrize("role", ["validators", "trainers"])
def test_admit_view__reject_a_front_run_with_other_keys_or_payouts(role: str, field: str) -> None:
    """Somebody created the run's id first, with the same nodes but their own addresses."""
    world = make_world()
    view, before = make_view(world.spec), world.trusted.view
    first, *others = getattr(view.terms, role)
    changes: dict[str, Any] = {role: (replace(first, **{field: "0x" + "11" * 20}), *others)}
    terms = replace(view.terms, **changes)
    with pytest.raises(Reject) as caught:
        world.trusted.admit_view(replace(view, terms=terms))
    assert caught.value.reason is Reason.OLD_TERM
    assert world.trusted.view is before


@pytest.mark.parametrize("field", ["epoch_checkpoints", "epoch_max_seconds", "round_seconds"])
def test_admit_view__reject_other_epochs(field: str) -> None:
    world = make_world()
    view, before = make_view(world.spec), world.trusted.view
    changes: dict[str, Any] = {field: 10**6}
    with pytest.raises(Reject):
        world.trusted.admit_view(replace(view, terms=replace(view.terms, **changes)))
    assert world.trusted.view is before


def test_admit_view__reject_validators_in_another_order() -> None:
    """The order determines who proposes and, among trainers, who leads."""
    world = make_world()
    view = make_view(world.spec)
    with pytest.raises(Reject):
        world.trusted.admit_view(replace(view, terms=replace(view.terms, validators=view.terms.validators[::-1])))


def test_admit_head__steps_opened_ahead_of_the_head_are_not_kept() -> None:
    world = make_world()
    steps = tuple(OpenStep(step=2**62 + number, limit=4, share=1) for number in range(16))
    world.trusted.admit_head(world.row(make_head(open_steps=steps), TRAINER, sequence=2**50))
    assert set(world.trusted.opened) == {1}


def test_admit_tally__reject_an_operator_that_is_not_the_validators() -> None:
    world = make_world()
    operators = [item.operator for item in world.spec.validators]
    row = TallyRow(
        run=world.run,
        epoch=0,
        round=0,
        closing_block=30,
        parent_root="00" * 32,
        root="ab" * 32,
        total=1,
        amount=0,
        blob="cd" * 32,
        size=10,
        operator=operators[1],
        signature="00" * 65,
    )
    with pytest.raises(Reject):
        world.trusted.admit_tally(world.row(row, VALIDATORS[0]))
    world.trusted.admit_tally(world.row(row, VALIDATORS[1]))
    with pytest.raises(Ignore):  # once per epoch and round
        world.trusted.admit_tally(world.row(row.model_copy(update={"root": "ef" * 32}), VALIDATORS[1]))


def test_admit_tally__a_validators_endless_rounds_are_bounded_and_cost_only_its_own() -> None:
    world = make_world()
    fields: dict[str, Any] = {"epoch": 0, "closing_block": 30, "parent_root": "00" * 32, "root": "ab" * 32, "total": 1}
    fields["amount"] = 0
    fields |= {"run": world.run, "blob": "cd" * 32, "size": 10, "signature": "00" * 65}

    def attest(number: int, round_number: int) -> None:
        operator = world.spec.validators[number].operator
        row = world.row(TallyRow(round=round_number, operator=operator, **fields), VALIDATORS[number])
        world.trusted.admit_tally(row)

    attest(0, 0)
    for round_number in range(MAX_ROUNDS + 5):
        attest(1, round_number)
    rounds = sorted(place[1] for place in world.trusted.tallies if place[2] == VALIDATORS[1].node)
    assert rounds == list(range(5, MAX_ROUNDS + 5))
    assert (0, 0, VALIDATORS[0].node) in world.trusted.tallies


def test_forget_before__drops_everything_of_older_steps() -> None:
    world = make_world()
    submission = make_submission(world)
    admit(world, submission)
    accept(world, submission)
    world.trusted.forget_before(2)
    assert not world.trusted.submissions
    assert not world.trusted.standings
    assert not world.trusted.opened
    assert world.trusted.rival(submission, "ab" * 32) is None


def test_is_member__registered_nodes_and_operators() -> None:
    world = make_world()
    members = [key.node for key in (WORKER, VALIDATORS[0], TRAINER)]
    assert all(map(world.trusted.is_member, members))
    assert not world.trusted.is_member(node_key(77).node)


# -- strikes, stake, sets of validators -------------------------------------------------------------------------------


def test_admit_submission__ignore_an_ejected_node_until_its_strike_is_lifted() -> None:
    world = make_world()
    row, view = world.row(make_submission(world), WORKER), world.trusted.view
    assert view is not None
    world.trusted.admit_view(replace(view, ejected=frozenset({WORKER.node})))
    before = world.state()
    with pytest.raises(Ignore) as caught:
        world.trusted.admit_submission(row)
    assert caught.value.reason is Reason.EJECTED
    assert world.state() == before
    assert not world.trusted.is_member(WORKER.node)
    assert not world.trusted.may_be_stored(row)
    world.trusted.admit_view(view)
    assert world.trusted.admit_submission(row).digest == row.digest


def test_admit_submission__ignore_a_node_without_the_stake_the_run_asks_for() -> None:
    world = make_world(make_spec(rewards=RewardSpec(min_stake="10")))
    row, view = world.row(make_submission(world), WORKER), world.trusted.view
    assert view is not None
    before = world.state()
    with pytest.raises(Ignore) as caught:
        world.trusted.admit_submission(row)
    assert caught.value.reason is Reason.NO_STAKE
    assert world.state() == before
    world.trusted.admit_view(replace(view, stakes={WORKER.node: 10}))
    assert world.trusted.admit_submission(row).digest == row.digest


def test_admit_view__the_word_of_a_validator_that_left_counts_no_more() -> None:
    world = make_world()
    submission = make_submission(world)
    admitted = world.trusted.admit_submission(world.row(submission, WORKER))
    for key in VALIDATORS[:2]:
        world.trusted.admit_verdict(world.row(make_verdict(submission), key))
    assert world.trusted.is_accepted(admitted.digest)
    view = world.trusted.view
    assert view is not None
    left = ValidatorSet(1, view.terms.validators[1:], 2, 50)
    world.trusted.admit_view(replace(view, judges=left))
    assert not world.trusted.is_accepted(admitted.digest)
    with pytest.raises(Reject):
        world.trusted.admit_verdict(world.row(make_verdict(submission), VALIDATORS[0], sequence=NOW + 1))


def test_admit_seal__the_first_of_a_validator_stands() -> None:
    world = make_world()
    submission = make_submission(world)

    def sealed(seal: str, key: NodeKey = VALIDATORS[0], now: int = NOW) -> SealedVerdict:
        message = SealedVerdict(
            run=world.run, submission=submission_digest(submission), node=WORKER.node, step=1, seal=seal
        )
        return world.trusted.admit_seal(world.row(message, key, now=now))

    sealed("ab" * 32)
    with pytest.raises(Ignore):
        sealed("cd" * 32, now=NOW + 1)
    with pytest.raises(Reject):
        sealed("cd" * 32, STRANGER)
    assert world.trusted.seals[submission_digest(submission)] == {VALIDATORS[0].node: "ab" * 32}


def test_admit_seal__on_what_was_never_seen_is_bounded() -> None:
    spec = make_spec()
    trusted = TrustedState(spec, most_early=2)
    trusted.admit_view(make_view(spec))
    for number in range(3):
        message = SealedVerdict(run=spec.run_id, submission=f"{number:064x}", node=WORKER.node, step=1, seal="ab" * 32)
        row = make_row(message, VALIDATORS[0], spec=spec)
        if number < 2:
            trusted.admit_seal(row)
        else:
            with pytest.raises(Ignore):
                trusted.admit_seal(row)
    trusted.forget_before(2)
    assert not trusted.seals


def test_admit_view__the_seals_and_the_lead_of_a_validator_that_left_are_dropped() -> None:
    """Appointed again, it may be ahead by as much as any other."""
    spec = make_spec()
    trusted, view = TrustedState(spec, most_early=1), make_view(spec)
    trusted.admit_view(view)

    def judge(number: int, key: NodeKey) -> None:
        place: dict[str, Any] = {"submission": f"{number:064x}", "node": WORKER.node, "step": 1}
        trusted.admit_seal(make_row(SealedVerdict(run=spec.run_id, seal="ab" * 32, **place), key, spec=spec))
        unseen = make_verdict(make_submission(World(spec, trusted), index=number))
        trusted.admit_verdict(make_row(unseen, key, spec=spec))

    judge(0, VALIDATORS[0])
    judge(0, VALIDATORS[1])
    trusted.admit_view(replace(view, judges=ValidatorSet(1, view.terms.validators[1:], 2, 50)))
    assert {name for sealed in trusted.seals.values() for name in sealed} == {VALIDATORS[1].node}
    trusted.admit_view(replace(view, judges=ValidatorSet(2, view.terms.validators, 2, 60)))
    judge(1, VALIDATORS[0])
