"""Submissions and the verdicts on them as a tally stores them: packing, opening and checking."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from dht.encoding import digest
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import Malformed
from roles.messages import ROW_RULES, Submission, Verdict, open_row, open_submission
from roles.seals import earning_validators
from roles.spec import RunSpec
from roles.tally.body import TallyItem
from roles.tally.context import Bench, TallyContext
from roles.tally.faults import TallyFault, TallyRefused
from roles.trusted import is_verdict_on

Outcome = Literal["accept", "fault"]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A submission with the rows of validators that agree on it."""

    submission: Envelope
    verdicts: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """A valid item: the submission, its digest, and the validators whose verdict on it earns."""

    submission: Submission
    digest: str
    earning: frozenset[str]


def place_digest(submission: Submission) -> str:
    """Identity of a (node, step, index), which is credited at most once."""
    return digest("credit/1", submission.node, submission.step, submission.index)


def refusal_digest(submission_digest: str) -> str:
    """Identity of a refusal, whose verdicts are credited at most once."""
    return digest("refusal/1", submission_digest)


def pack_item(contribution: Contribution) -> TallyItem:
    """A contribution as a tally item."""
    verdicts = sorted(contribution.verdicts, key=lambda row: row.signer)
    return TallyItem(submission=row_text(contribution.submission), verdicts=tuple(map(row_text, verdicts)))


def rows_of(item: TallyItem) -> tuple[str, ...]:
    """All rows of an item."""
    return (item.submission, *item.verdicts)


def row_text(row: Envelope) -> str:
    """A signed row in base64."""
    return base64.b64encode(to_bytes(row)).decode()


def row_from_text(text: str, kind: str) -> Envelope:
    """Decode a row from base64 and check its signature. Raises Malformed."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Malformed(f"not base64: {error}") from error
    return from_bytes(data, limit=ROW_RULES[kind].max_bytes)


def submissions_of(items: Iterable[TallyItem], spec: RunSpec) -> list[Submission]:
    """The submissions of a tally's items; items that do not parse are left out."""
    found: list[Submission] = []
    for item in items:
        with suppress(Malformed):
            row = row_from_text(item.submission, "submission/1")
            found.append(open_submission(row, run=spec.run_id, buckets=spec.buckets))
    return found


def check_item(item: TallyItem, context: TallyContext, *, disputed: Collection[str] = ()) -> JudgedItem:
    """Check a submission to be counted. Raises TallyRefused unless a quorum of validators
    accepted it and it is creditable."""
    judged = _check(item, context, "accept", TallyFault.INVALID_ITEM)
    if judged.digest in disputed:
        raise TallyRefused(TallyFault.DISPUTED)
    if context.registration_of(judged.submission.node) is None:
        raise TallyRefused(TallyFault.UNREGISTERED)
    return judged


def check_refusal(item: TallyItem, context: TallyContext) -> JudgedItem:
    """Check a submission that a quorum found at fault; only its validators are credited. Raises TallyRefused."""
    return _check(item, context, "fault", TallyFault.INVALID_REFUSAL)


def _check(item: TallyItem, context: TallyContext, outcome: Outcome, fault: TallyFault) -> JudgedItem:
    try:
        row, submission, verdicts = open_item(item, context.bench, outcome)
    except Malformed as error:
        raise TallyRefused(fault, str(error)[:200]) from error
    if not context.is_creditable(submission.step):
        raise TallyRefused(TallyFault.NOT_CREDITABLE, f"step {submission.step}")
    return JudgedItem(submission, row.digest, earning_validators(verdicts, sealed=context.spec.checks.seals))


def open_item(item: TallyItem, bench: Bench, outcome: Outcome) -> tuple[Envelope, Submission, dict[str, Verdict]]:
    """Row and message of a submission, and the verdicts of a quorum, all with this `outcome`, by
    validator. Raises Malformed."""
    row = row_from_text(item.submission, "submission/1")
    submission = open_submission(row, run=bench.run, buckets=bench.buckets)
    verdicts: dict[str, Verdict] = {}
    for text in item.verdicts:
        signer, verdict = _open_vote(text, bench)
        if verdict.outcome != outcome or verdict.submission != row.digest or not is_verdict_on(verdict, submission):
            raise Malformed(f"not a verdict that says {outcome} of this submission")
        verdicts[signer] = verdict
    if len(verdicts) != len(item.verdicts) or len(verdicts) < bench.quorum:
        raise Malformed(f"{len(verdicts)} validators say so")
    return row, submission, verdicts


def _open_vote(text: str, bench: Bench) -> tuple[str, Verdict]:
    row = row_from_text(text, "verdict/2")
    message = open_row(row, run=bench.run, buckets=bench.buckets)
    if not isinstance(message, Verdict) or row.signer not in bench.validators:
        raise Malformed("not a verdict of a validator")
    return row.signer, message
