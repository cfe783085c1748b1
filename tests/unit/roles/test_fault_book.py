"""The book of proven faults: what is entered, what is kept per node, and that it survives a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from roles.tally.context import Bench
from roles.validator.faults import MOST_OF_NODE, FaultBook
from roles.validator.records import JudgedRows
from tests.builders import VALIDATORS, WORKERS, World, make_submission, make_verdict, make_world

CHEAT = WORKERS[0]


def judge(
    world: World,
    *,
    index: int = 0,
    voters: Sequence[NodeKey] = VALIDATORS[:2],
    gate: dict[str, Envelope] | None = None,
    **verdict: object,
) -> str:
    """Validators judge a submission, which passed the gate unless `gate` stops it. Returns its digest."""
    submission = make_submission(world, CHEAT, index=index)
    row = world.row(submission, CHEAT)
    if gate is None:
        world.trusted.readmit_submission(row)
    else:
        gate[row.digest] = row
    fields = {"outcome": "fault", "reason": 401, **verdict}
    for key in voters:
        world.trusted.admit_verdict(world.row(make_verdict(submission, **fields), key))
    return row.digest


def make_book(world: World, folder: Path, gate: dict[str, Envelope] | None = None) -> tuple[FaultBook, JudgedRows]:
    """A book over its own records."""
    records = JudgedRows(folder / "judged.sqlite")
    return FaultBook(trusted=world.trusted, records=records, gate_rows=gate or {}), records


def test_observe__a_quorum_of_faults_is_proof(tmp_path: Path) -> None:
    world = make_world()
    proved = judge(world)
    judge(world, index=1, voters=VALIDATORS[:1])
    judge(world, index=2, outcome="soft", reason=201)
    book, records = make_book(world, tmp_path)
    book.observe()
    assert list(book.faults) == [proved]
    assert book.faults[proved].reason == 401
    assert len(book.faults[proved].proof.verdicts) == 2
    records.close()


def test_observe__rows_that_never_passed_the_gate_count_too(tmp_path: Path) -> None:
    world, gate = make_world(), dict[str, Envelope]()
    refused = judge(world, gate=gate)
    book, records = make_book(world, tmp_path, gate)
    book.observe()
    assert list(book.faults) == [refused]
    records.close()


def test_observe__verdicts_that_misstate_what_they_judge_prove_nothing(tmp_path: Path) -> None:
    world = make_world()
    judge(world, index=0)
    submission = make_submission(world, CHEAT, index=1)
    world.trusted.readmit_submission(world.row(submission, CHEAT))
    for key in VALIDATORS[:2]:
        verdict = make_verdict(submission, outcome="fault", reason=401, node=WORKERS[1].node)
        world.trusted.admit_verdict(world.row(verdict, key))
    book, records = make_book(world, tmp_path)
    book.observe()
    assert len(book.faults) == 1
    records.close()


def test_observe__survives_a_restart_and_the_end_of_the_epoch(tmp_path: Path) -> None:
    world = make_world()
    proved = judge(world)
    book, records = make_book(world, tmp_path)
    book.observe()
    records.close()
    world.trusted.forget_before(100)
    again, records = make_book(make_world(), tmp_path)
    assert list(again.faults) == [proved]
    assert [fault.submission.node for fault in again.faults.values()] == [CHEAT.node]
    records.close()


def test_start__a_kept_verdict_of_another_version_is_left_out(tmp_path: Path) -> None:
    world = make_world()
    submission = make_submission(world, CHEAT)
    row = world.row(make_verdict(submission, outcome="fault", reason=401), VALIDATORS[0])
    fields = {name: getattr(row, name) for name in ("run", "subkey", "sequence", "expiration", "payload")}
    old = seal(VALIDATORS[0], kind="verdict/1", record_key=row.key, **fields)
    records = JudgedRows(tmp_path / "judged.sqlite")
    records.keep_fault(submission, world.row(submission, CHEAT), [old])
    records.close()
    book, records = make_book(world, tmp_path)
    assert not book.faults
    records.close()


def test_observe__of_one_node_so_many_are_kept(tmp_path: Path) -> None:
    world = make_world()
    for index in range(MOST_OF_NODE + 3):
        judge(world, index=index)
    book, records = make_book(world, tmp_path)
    book.observe()
    assert len(book.faults) == len(records.faults()) == MOST_OF_NODE
    assert min(fault.submission.index for fault in book.faults.values()) == 3
    records.close()


def test_observe__who_says_it_later_is_kept_too(tmp_path: Path) -> None:
    world = make_world()
    proved = judge(world)
    book, records = make_book(world, tmp_path)
    book.observe()
    judge(world, voters=VALIDATORS[2:])
    book.observe()
    assert {row.signer for row in book.faults[proved].proof.verdicts} == {key.node for key in VALIDATORS}
    records.close()
    again, records = make_book(make_world(), tmp_path)
    assert len(again.faults[proved].proof.verdicts) == 3
    records.close()


def test_said_by__what_is_left_of_a_proof_when_validators_leave(tmp_path: Path) -> None:
    world = make_world()
    judge(world, voters=VALIDATORS[:1])
    proved = judge(world, voters=VALIDATORS[1:], reason=402)
    book, records = make_book(world, tmp_path)
    book.observe()
    bench = Bench(world.run, world.spec.buckets, [key.node for key in VALIDATORS[1:]], 2)
    left = book.faults[proved].said_by(bench)
    assert left is not None
    assert [row.signer for row in left.proof.verdicts] == [key.node for key in VALIDATORS[1:]]
    assert (book.faults[proved].reason, left.reason) == (401, 402)  # who gave the other reason is gone
    assert book.faults[proved].said_by(replace(bench, validators=[VALIDATORS[0].node])) is None
    records.close()
