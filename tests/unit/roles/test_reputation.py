"""Records of nodes: a quorum's verdict counts; a single validator's, or anybody else's, does not."""

from __future__ import annotations

import pytest

from dht.envelope import Envelope
from roles.messages import Submission
from roles.reputation import compute_records, decide
from roles.rules import Reason
from tests.builders import STRANGER, VALIDATORS, WORKERS, World, make_judges, make_submission, make_verdict, make_world

WORKER = WORKERS[0].node
FAULT = {"outcome": "fault", "reason": int(Reason.WRONG_REWARD), "tokens": 0}
SOFT = {"outcome": "soft", "reason": int(Reason.BLOB_MISSING), "tokens": 0}
ACCEPT: dict[str, object] = {}


def rows_of(world: World, submission: Submission, *outcomes: dict[str, object]) -> list[Envelope]:
    """A submission, and each validator's verdict on it."""
    verdicts = [make_verdict(submission, **changes) for changes in outcomes]
    return [
        world.row(submission, WORKERS[0]),
        *(world.row(verdict, key) for verdict, key in zip(verdicts, VALIDATORS, strict=False)),
    ]


@pytest.mark.parametrize(
    ("outcomes", "counted"),
    [
        ([ACCEPT, ACCEPT], "accepted"),
        ([ACCEPT, FAULT, ACCEPT], "accepted"),
        ([FAULT, FAULT], "faults"),
        ([FAULT, SOFT], "soft"),
        ([ACCEPT], "undecided"),
        ([ACCEPT, FAULT], "undecided"),
        ([], "undecided"),
    ],
)
def test_compute_records__a_quorum_decides(outcomes: list[dict[str, object]], counted: str) -> None:
    world = make_world()
    submission = make_submission(world)
    records = compute_records(
        rows_of(world, submission, *outcomes),
        spec=world.spec,
        judges=make_judges(world.spec),
    )
    record = records.workers[WORKER]
    counts = {name: getattr(record, name) for name in ("accepted", "faults", "soft", "undecided")}
    assert counts == {**dict.fromkeys(counts, 0), counted: 1}
    assert record.tokens == (submission.tokens if counted == "accepted" else 0)
    assert record.share == {"accepted": 1.0, "undecided": None}.get(counted, 0.0)


def test_compute_records__reasons_and_the_validator_that_differed() -> None:
    world = make_world()
    rows = rows_of(world, make_submission(world), FAULT, FAULT, ACCEPT)
    records = compute_records(rows, spec=world.spec, judges=make_judges(world.spec))
    assert records.workers[WORKER].reasons == {"wrong_reward": 1}
    shares = [records.validators[key.node].share for key in VALIDATORS]
    assert shares == [1.0, 1.0, 0.0]


def test_compute_records__a_strangers_verdicts_are_none() -> None:
    world = make_world()
    submission = make_submission(world)
    rows = [world.row(submission, WORKERS[0]), world.row(make_verdict(submission, **FAULT), STRANGER)]
    records = compute_records(rows, spec=world.spec, judges=make_judges(world.spec))
    assert records.workers[WORKER].undecided == 1
    assert STRANGER.node not in records.validators


def test_decide__nothing_without_a_quorum() -> None:
    assert decide([], quorum=1) is None
