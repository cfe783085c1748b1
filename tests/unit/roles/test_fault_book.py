"""The book of proven faults: what goes in, what is kept of each node, and that a restart keeps it."""

from __future__ import annotations

from pathlib import Path

from dht.envelope import Envelope
from roles.validator.faults import MOST_OF_NODE, FaultBook
from roles.validator.records import JudgedRows
from tests.builders import VALIDATORS, WORKERS, World, make_submission, make_verdict, make_world

CHEAT = WORKERS[0]


def judge(
    world: World, *, index: int = 0, voters: int = 2, gate: dict[str, Envelope] | None = None, **verdict: object
) -> str:
    """Validators judge a submission, which the gate let in unless `gate` holds it; its digest."""
    submission = make_submission(world, CHEAT, index=index)
    row = world.row(submission, CHEAT)
    if gate is None:
        world.trusted.readmit_submission(row)
    else:
        gate[row.digest] = row
    fields = {"outcome": "fault", "reason": 401, **verdict}
    for key in VALIDATORS[:voters]:
        world.trusted.admit_verdict(world.row(make_verdict(submission, **fields), key))
    return row.digest


def make_book(world: World, folder: Path, gate: dict[str, Envelope] | None = None) -> tuple[FaultBook, JudgedRows]:
    """A book over its own records."""
    records = JudgedRows(folder / "judged.sqlite")
    return FaultBook(trusted=world.trusted, records=records, gate_rows=gate or {}), records


def test_observe__a_quorum_of_faults_is_proof(tmp_path: Path) -> None:
    world = make_world()
    proved = judge(world)
    judge(world, index=1, voters=1)
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
    assert [fault.digest for fault in again.by_node()[CHEAT.node]] == [proved]
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
