"""Terms: a fenced leader's heads and checkpoints are refused; those of a term not seen yet wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dht.envelope import Envelope
from ledger.records import Lease
from roles.messages import SHARE_ALL, CheckpointRow, OpenStep
from roles.rules import Ignore, Reason, Reject
from roles.terms import distance
from tests.builders import (
    STRANGER,
    TRAINER,
    TRAINER_OPERATOR,
    World,
    make_head,
    make_spec,
    make_terms,
    make_view,
    make_world,
    manifest_of,
    node_key,
    operator_key,
    operator_spec,
)

SECOND = node_key(2)
TRAINERS = (operator_spec(TRAINER, TRAINER_OPERATOR), operator_spec(SECOND, operator_key(102)))


def world_of_two(term: int = 1, *, commits: int = 3) -> World:
    """Two trainers; in term 1 the first leads, in term 2 the second. Everybody has
    heard the first one's head before."""
    world = make_world(make_spec(trainers=TRAINERS), commits=commits)
    show_term(world, term, commits=commits)
    return world


def show_term(world: World, term: int, *, commits: int = 3) -> None:
    """The ledger shows this term."""
    leader = (TRAINER, SECOND)[(term - 1) % 2]
    lease = Lease(term, leader.node, 2000, 0)
    world.trusted.admit_view(replace(make_view(world.spec, commits=commits, head_block=100 + term), lease=lease))


def head_row(world: World, *, term: int, step: int = 1, by: object = None) -> Envelope:
    key = by or (TRAINER, SECOND)[(term - 1) % 2]
    return world.row(make_head(step, term=term), key, sequence=2**50)  # type: ignore[arg-type]


def test_admit_head__the_new_leaders_though_its_step_is_lower() -> None:
    world = world_of_two()
    world.trusted.admit_head(head_row(world, term=1, step=3))
    show_term(world, 2)
    assert world.trusted.admit_head(head_row(world, term=2, step=2)).step == 2
    assert world.trusted.head is not None
    assert (world.trusted.head.term, world.trusted.head.step) == (2, 2)


def test_admit_head__reject_a_fenced_leader() -> None:
    world = world_of_two(2)
    before = world.state()
    with pytest.raises(Reject) as caught:
        world.trusted.admit_head(head_row(world, term=1, step=9))
    assert caught.value.reason is Reason.OLD_TERM
    assert world.state() == before


def test_admit_head__reject_a_fenced_leader_that_names_the_new_term() -> None:
    world = world_of_two(2)
    before = world.state()
    with pytest.raises(Reject) as caught:
        world.trusted.admit_head(head_row(world, term=2, step=9, by=TRAINER))
    assert caught.value.reason is Reason.NOT_THE_LEADER
    assert world.state() == before


def test_admit_head__ignore_a_term_the_ledger_has_not_shown() -> None:
    world = world_of_two(1)
    before, row = world.state(), head_row(world, term=2)
    with pytest.raises(Ignore) as caught:
        world.trusted.admit_head(row)
    assert caught.value.reason is Reason.TERM_UNKNOWN
    assert world.state() == before
    show_term(world, 2)
    assert world.trusted.admit_head(row).term == 2


def test_admit_head__reject_a_stranger_whatever_term_it_names() -> None:
    world = world_of_two()
    with pytest.raises(Reject) as caught:
        world.trusted.admit_head(head_row(world, term=7, by=STRANGER))
    assert caught.value.reason is Reason.NOT_THE_LEADER


def test_admit_view__a_take_over_that_a_reorganisation_undid() -> None:
    world = world_of_two(2)
    world.trusted.admit_head(head_row(world, term=2, step=2))
    show_term(world, 1)
    assert world.trusted.admit_head(head_row(world, term=1, step=1)).term == 1


def test_admit_head__a_new_term_fixes_shares_anew_and_limits_only_rise() -> None:
    world = world_of_two()
    narrow = make_head(3, term=1, open_steps=(OpenStep(step=3, limit=9, share=5),))
    world.trusted.admit_head(world.row(narrow, TRAINER, sequence=2**50))
    show_term(world, 2)
    wide = make_head(3, term=2, open_steps=(OpenStep(step=3, limit=4, share=SHARE_ALL),))
    world.trusted.admit_head(world.row(wide, SECOND))
    assert world.trusted.opened[3] == OpenStep(step=3, limit=9, share=SHARE_ALL)


def check(world: World, *, term: int, step: int, manifest: str | None = None, by: object = None) -> None:
    key = by or (TRAINER, SECOND)[(term - 1) % 2]
    world.trusted.check_checkpoint(
        signer=key.node,  # type: ignore[attr-defined]
        term=term,
        step=step,
        manifest=manifest or manifest_of(step),
    )


def test_check_checkpoint__what_is_committed_stays_good_in_later_terms() -> None:
    check(world_of_two(2), term=1, step=2)


def test_check_checkpoint__the_leaders_next() -> None:
    check(world_of_two(1), term=1, step=3)
    check(world_of_two(2), term=2, step=3)


@pytest.mark.parametrize(
    ("step", "manifest", "by", "term", "reason"),
    [
        (3, None, TRAINER, 1, Reason.OLD_TERM),  # made before it was fenced, never committed
        (2, "ee" * 32, TRAINER, 1, Reason.OLD_TERM),  # another one of a committed step
        (2, "ee" * 32, SECOND, 2, Reason.OLD_TERM),  # nor may the new leader replace it
        (3, None, TRAINER, 2, Reason.NOT_THE_LEADER),
        (3, None, STRANGER, 2, Reason.NOT_THE_LEADER),
    ],
)
def test_check_checkpoint__reject(step: int, manifest: str | None, by: object, term: int, reason: Reason) -> None:
    with pytest.raises(Reject) as caught:
        check(world_of_two(2), term=term, step=step, manifest=manifest, by=by)
    assert caught.value.reason is reason


def test_check_checkpoint__ignore_a_term_not_seen() -> None:
    with pytest.raises(Ignore) as caught:
        check(world_of_two(1), term=2, step=3)
    assert caught.value.reason is Reason.TERM_UNKNOWN


def test_may_be_stored__rows_of_a_fenced_leader_are_not_kept_for_others() -> None:
    world = world_of_two(2)
    kept = [
        head_row(world, term=2),
        head_row(world, term=3),  # our view may lag
        world.row(CheckpointRow(term=1, step=2, manifest=manifest_of(2)), TRAINER),
        world.row(CheckpointRow(term=2, step=3, manifest=manifest_of(3)), SECOND),
    ]
    refused = [
        head_row(world, term=1),
        head_row(world, term=2, by=TRAINER),
        world.row(CheckpointRow(term=1, step=3, manifest=manifest_of(3)), TRAINER),
        world.row(CheckpointRow(term=1, step=2, manifest="ee" * 32), TRAINER),
        world.row(CheckpointRow(term=2, step=2, manifest=manifest_of(2)), STRANGER),
    ]
    assert [world.trusted.may_be_stored(row) for row in kept] == [True] * len(kept)
    assert [world.trusted.may_be_stored(row) for row in refused] == [False] * len(refused)


def test_distance__places_after_the_leader_and_round_again() -> None:
    trainers = make_terms(make_spec(trainers=(*TRAINERS, operator_spec(node_key(3), operator_key(103))))).trainers
    third = node_key(3).node
    assert distance(third, leader=SECOND.node, trainers=trainers) == 1
    assert distance(TRAINER.node, leader=SECOND.node, trainers=trainers) == 2
    assert distance(SECOND.node, leader=SECOND.node, trainers=trainers) == 0
