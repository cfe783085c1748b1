"""Runs the checks over one submission and returns a finding. Blocking: call it from the compute thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from roles.inference.engine import Engine
from roles.messages import Statistics, Submission
from roles.rollouts.schema import read_rollouts
from roles.rules import Reason, Reject, SoftReject
from roles.spec import RunSpec
from roles.tasks import Task
from roles.toploc.joined.pinned import calibration_of
from roles.turns.tool import load_tool_use
from roles.verification.case import Case, Means, Reader
from roles.verification.checks import CHECKS, Check
from roles.verification.duplicates import DuplicateIndex

Outcome = Literal["accept", "fault", "soft"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the checks found. `sequences` identify the completions of an accepted submission. `evidence` is its
    contribution to the node's history, if the run judges histories and the audit got that far."""

    outcome: Outcome
    reason: Reason
    detail: str = ""
    audited: bool = False
    statistics: Statistics | None = None
    sequences: tuple[str, ...] = ()
    evidence: tuple[float, ...] | None = None


class Verifier:
    """The checks of one run on one engine, which must hold the submission's policy when `judge` is called. The
    constructor raises TaskError when the run's tool is not available here."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        engine: Engine,
        task: Task,
        duplicates: DuplicateIndex | None = None,
        checks: Sequence[Check] = CHECKS,
        read: Reader = read_rollouts,
        secret: bytes = b"",
    ) -> None:
        self.duplicates = DuplicateIndex() if duplicates is None else duplicates
        self._checks = tuple(checks)
        self._means = Means(
            spec=spec,
            engine=engine,
            task=task,
            duplicates=self.duplicates,
            read=read,
            secret=secret,
            use=load_tool_use(spec.tool),
            calibration=None if spec.checks.joined is None else calibration_of(spec.checks.joined),
        )

    def judge(self, submission: Submission, *, seed: str, data: bytes, audit: bool = True) -> Finding:
        """Judge a submission that passed the gate, by its assignment seed and its blob (whose digest was
        verified). The first check that refuses sets the reason. The completions of an accepted submission
        belong to it from then on."""
        case = Case(submission, seed, data, self._means)
        try:
            for check in self._checks:
                if audit or not check.audit:
                    check.judge(case)
        except Reject as refusal:
            return _finding("fault", refusal.reason, case, detail=refusal.detail, audit=audit)
        except SoftReject as refusal:
            return _finding("soft", refusal.reason, case, detail=refusal.detail, audit=audit)
        self.duplicates.add(case.sequences, case.place)
        return _finding("accept", Reason.ACCEPTED, case, audit=audit)


def _finding(outcome: Outcome, reason: Reason, case: Case, *, audit: bool, detail: str = "") -> Finding:
    found = case.score if audit else None
    return Finding(
        outcome,
        reason,
        detail,
        audit,
        case.statistics(),
        case.sequences if outcome == "accept" else (),
        None if found is None else found.evidence,
    )
