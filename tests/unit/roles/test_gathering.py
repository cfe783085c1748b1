"""What a proposer includes in a tally when only a sample is audited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from dht.identity import NodeKey
from roles.rules import Reason
from roles.spec import CheckSpec
from roles.tally import TallyContext
from roles.tally.context import Bench
from roles.validator.faults import FaultBook
from roles.validator.gathering import Gathering
from roles.validator.records import JudgedRows
from roles.worker.generation import submission_digest
from tests.builders import VALIDATORS, WORKERS, World, make_spec, make_submission, make_verdict, make_world
from tests.unit.roles.validator_network import ValidatorNetwork


class EverythingCreditable:
    """An epoch that credits any step and has credited nothing."""

    def __init__(self, *validators: NodeKey) -> None:
        self.validators, self.quorum = [key.node for key in validators], 2
        self.bench = Bench("", 1, self.validators, self.quorum)

    def credited(self) -> frozenset[str]:
        return frozenset()

    def is_creditable(self, step: int) -> bool:
        return True


CONTEXT = cast(TallyContext, EverythingCreditable(*VALIDATORS))


def gathered(gathering: Gathering) -> Sequence[str]:
    return [item.submission.digest for item in gathering.contributions(CONTEXT)]


def make_gathering(world: World, folder: Path, now: list[int]) -> Gathering:
    observer = ValidatorNetwork(world.spec, folder).eye
    faults = FaultBook(trusted=world.trusted, records=JudgedRows(folder / "judged.sqlite"), gate_rows={})
    return Gathering(trusted=world.trusted, observer=observer, faults=faults, clock=lambda: now[0])


async def test_contributions__wait_for_audits(tmp_path: Path) -> None:
    world, now = make_world(make_spec(checks=CheckSpec(audit_rate=100, audit_window=60))), [1_000_000]
    gathering = make_gathering(world, tmp_path, now)
    submissions = [make_submission(world, key) for key in WORKERS[:2]]
    for submission, key in zip(submissions, WORKERS, strict=False):
        world.trusted.admit_submission(world.row(submission, key))
        for validator in VALIDATORS[:2]:
            world.trusted.admit_verdict(world.row(make_verdict(submission, audited=False), validator))
    assert gathered(gathering) == []
    assert gathering.is_waiting
    fault = make_verdict(submissions[1], outcome="fault", reason=int(Reason.PROOF_MISMATCH))
    world.trusted.admit_verdict(world.row(fault, VALIDATORS[2]))
    now[0] += 60_000
    assert gathered(gathering) == [submission_digest(submissions[0])]
    assert not gathering.is_waiting


async def test_contributions__at_once_where_everything_is_audited(tmp_path: Path) -> None:
    world = make_world()
    gathering = make_gathering(world, tmp_path, [0])
    submission = make_submission(world)
    world.trusted.admit_submission(world.row(submission, WORKERS[0]))
    for validator in VALIDATORS[:2]:
        world.trusted.admit_verdict(world.row(make_verdict(submission), validator))
    assert gathered(gathering) == [submission_digest(submission)]
    assert not gathering.is_waiting


async def test_contributions__verdicts_of_who_does_not_count_in_this_epoch_are_left_out(tmp_path: Path) -> None:
    """One such row would spoil the whole item."""
    world = make_world()
    gathering = make_gathering(world, tmp_path, [0])
    submission = make_submission(world)
    world.trusted.admit_submission(world.row(submission, WORKERS[0]))
    for validator in VALIDATORS:
        world.trusted.admit_verdict(world.row(make_verdict(submission), validator))
    (item,) = gathering.contributions(cast(TallyContext, EverythingCreditable(*VALIDATORS[:2])))
    assert {row.signer for row in item.verdicts} == {key.node for key in VALIDATORS[:2]}


async def test_gathered__what_too_few_say_who_count_in_this_epoch_is_left_out(tmp_path: Path) -> None:
    """Validators have been replaced, and the verdicts of those that left can be shown to nobody."""
    world = make_world()
    gathering = make_gathering(world, tmp_path, [0])
    for key, outcome in ((WORKERS[0], "accept"), (WORKERS[1], "fault")):
        submission = make_submission(world, key)
        world.trusted.admit_submission(world.row(submission, key))
        reason = int(Reason.WRONG_REWARD if outcome == "fault" else Reason.ACCEPTED)
        for validator in VALIDATORS[:2]:
            world.trusted.admit_verdict(world.row(make_verdict(submission, outcome=outcome, reason=reason), validator))
    assert len(gathering.contributions(CONTEXT)) == len(gathering.refusals(CONTEXT)) == 1
    for left in (VALIDATORS[1:], VALIDATORS[2:]):
        context = cast(TallyContext, EverythingCreditable(*left))
        assert gathering.contributions(context) == gathering.refusals(context) == []


async def test_held__what_was_credited_is_gathered_once(tmp_path: Path) -> None:
    """There may be a hundred thousand credited places, and ten thousand held."""

    class Counting(EverythingCreditable):
        asked = 0

        def credited(self) -> frozenset[str]:
            self.asked += 1
            return super().credited()

        def registration_of(self, node: str) -> str:
            return node

    world = make_world()
    gathering = make_gathering(world, tmp_path, [0])
    for key in WORKERS[:2]:
        submission = make_submission(world, key)
        world.trusted.admit_submission(world.row(submission, key))
        for validator in VALIDATORS[:2]:
            world.trusted.admit_verdict(world.row(make_verdict(submission), validator))
    gathering.note()
    context = Counting(*VALIDATORS)
    assert len(gathering.held(cast(TallyContext, context), before=1)) == 2
    assert context.asked == 1
