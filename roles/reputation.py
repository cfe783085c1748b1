"""How well each node has done, from signed rows: what a quorum accepted or refused of a worker, and how
often a validator agreed.

Pure. Nothing is decided here: the result is for people, who choose whom to trust with what. Only correctly signed rows
that still exist (the DHT forgets) are counted, so it covers the last minutes; the ledger has the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dht.envelope import Envelope
from ledger.records import ValidatorSet
from roles.messages import Submission, Verdict
from roles.rules import name_of
from roles.spec import RunSpec
from roles.tally import sort_rows
from roles.trusted import is_verdict_on


@dataclass(slots=True)
class WorkerRecord:
    """A worker's submissions by outcome. `faults` count towards strikes: provable, and found by a quorum."""

    accepted: int = 0
    faults: int = 0
    soft: int = 0
    undecided: int = 0
    tokens: int = 0  # accepted
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float | None:
        """Share of decided submissions that were accepted; None if none is decided."""
        decided = self.accepted + self.faults + self.soft
        return self.accepted / decided if decided else None


@dataclass(slots=True)
class ValidatorRecord:
    """A validator's verdicts, on submissions that a quorum has decided and on undecided ones."""

    agreed: int = 0
    differed: int = 0
    undecided: int = 0

    @property
    def share(self) -> float | None:
        """Share of verdicts on decided submissions that agreed; None if none is decided."""
        decided = self.agreed + self.differed
        return self.agreed / decided if decided else None


@dataclass(frozen=True, slots=True)
class Records:
    """Records by node id."""

    workers: Mapping[str, WorkerRecord]
    validators: Mapping[str, ValidatorRecord]


def compute_records(rows: Iterable[Envelope], *, spec: RunSpec, judges: ValidatorSet) -> Records:
    """Count verified submission and verdict rows. Rows that do not parse, or misstate whom
    they are about, are left out."""
    validators = [item.node for item in judges.validators]
    submissions, votes = sort_rows(rows, spec=spec, validators=validators)
    workers: dict[str, WorkerRecord] = {}
    records = {node: ValidatorRecord() for node in validators}
    for name, submission in submissions.items():
        standing = {node: verdict for node, verdict in votes[name].items() if is_verdict_on(verdict, submission)}
        outcome = decide(standing.values(), quorum=judges.quorum)
        _count(workers.setdefault(submission.node, WorkerRecord()), submission, outcome, standing.values())
        for node, verdict in standing.items():
            _count_vote(records[node], verdict, outcome)
    return Records(workers, records)


def decide(verdicts: Iterable[Verdict], *, quorum: int) -> str | None:
    """The outcome that a quorum supports: `accept`, `fault` or `soft`; a refusal of both kinds is soft. None while
    there is no quorum."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    for outcome in ("accept", "fault"):
        if counts[outcome] >= quorum:
            return outcome
    return "soft" if counts["fault"] + counts["soft"] >= quorum else None


def _count(record: WorkerRecord, submission: Submission, outcome: str | None, verdicts: Iterable[Verdict]) -> None:
    match outcome:
        case "accept":
            record.accepted += 1
            record.tokens += submission.tokens
        case None:
            record.undecided += 1
        case _:
            record.faults += outcome == "fault"
            record.soft += outcome == "soft"
            record.reasons.update({name_of(each.reason) for each in verdicts if each.outcome != "accept"})


def _count_vote(record: ValidatorRecord, verdict: Verdict, outcome: str | None) -> None:
    if outcome is None:
        record.undecided += 1
    elif (verdict.outcome == "accept") is (outcome == "accept"):
        record.agreed += 1
    else:
        record.differed += 1
