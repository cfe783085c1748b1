"""Validators' verdicts and seals on submissions, and which submissions a quorum has accepted. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dht.envelope import Envelope
from dht.errors import Malformed
from roles.messages import SealedVerdict, Submission, Verdict
from roles.objections import Objections, is_objection
from roles.rules import Ignore, Reason, Reject
from roles.spec import RunSpec
from roles.trusted.ledger_facts import LedgerView
from roles.trusted.submissions import AdmittedSubmission, Submissions

MAX_EARLY_VERDICTS = 4096
"""Verdicts kept per validator on submissions not seen yet, so that a dishonest one cannot exhaust memory."""


@dataclass(slots=True)
class Standing:
    """The current verdicts on one submission, by validator."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    rows: dict[str, Envelope] = field(default_factory=dict)

    def count(self, outcome: str, submission: Submission, *, audited: bool = False) -> int:
        """Number of verdicts on this submission with this outcome (with `audited`, only those that audited). A verdict
        that misstates what it judges is not counted."""
        return sum(
            verdict.outcome == outcome and (verdict.audited or not audited) and is_verdict_on(verdict, submission)
            for verdict in self.verdicts.values()
        )

    def rows_saying(self, outcome: str, submission: Submission) -> list[Envelope]:
        """The signed verdict rows on this submission with this outcome, ordered by validator."""
        return [
            self.rows[signer]
            for signer, verdict in sorted(self.verdicts.items())
            if verdict.outcome == outcome and is_verdict_on(verdict, submission)
        ]


def is_verdict_on(verdict: Verdict, submission: Submission) -> bool:
    """Whether the verdict names the submission's node, step and index and, when it accepts, its token count."""
    place = (verdict.node, verdict.step, verdict.index) == (submission.node, submission.step, submission.index)
    return place and (verdict.outcome != "accept" or verdict.tokens == submission.tokens)


class Verdicts(Submissions):
    """Verdicts and seals of the ledger's validators, and the submissions that a quorum accepts."""

    def __init__(self, spec: RunSpec, *, most_early: int = MAX_EARLY_VERDICTS) -> None:
        super().__init__(spec)
        self.standings: defaultdict[str, Standing] = defaultdict(Standing)
        self.seals: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by submission, then validator
        self._sealed_steps: dict[str, int] = {}
        self._accepted: dict[tuple[str, int, int], str] = {}
        self._objections = Objections()
        self._most_early = most_early
        self._early: defaultdict[str, set[str]] = defaultdict(set)  # by validator: judged but not seen here yet
        self._early_seals: defaultdict[str, set[str]] = defaultdict(set)

    def admit_view(self, view: LedgerView) -> None:
        """As `LedgerFacts.admit_view`; when the validator set changes, also drop the verdicts
        of validators that left it."""
        before = self.judges
        super().admit_view(view)
        if before and before != self.judges:
            self._drop_verdicts_of_others()

    def _drop_verdicts_of_others(self) -> None:
        """Drop verdicts and seals of nodes that are no longer validators."""
        for standing in self.standings.values():
            for signer in self._others(standing.verdicts):
                del standing.verdicts[signer], standing.rows[signer]
        for seals in self.seals.values():
            for signer in self._others(seals):
                del seals[signer]
        for early in (self._early, self._early_seals):
            for signer in self._others(early):
                del early[signer]
        self._objections.keep_only(frozenset(item.node for item in self.judges))

    def _others(self, signers: Iterable[str]) -> list[str]:
        return [signer for signer in signers if not self.is_validator(signer)]

    def _remember(self, row: Envelope, submission: Submission, seed: str) -> AdmittedSubmission:
        admitted = super()._remember(row, submission, seed)
        for early in (*self._early.values(), *self._early_seals.values()):
            early.discard(row.digest)
        self._settle(row.digest)  # verdicts may have arrived before the submission
        return admitted

    def admit_verdict(self, row: Envelope) -> Verdict:
        """Adopt a verdict of a validator of the run; the highest sequence of each validator counts. Raises Malformed,
        Reject, or Ignore for an older one."""
        verdict = self.open(row)
        if not isinstance(verdict, Verdict):
            raise Malformed("not a verdict")
        # [REJECT] only validators of the ledger's set are counted
        if not self.is_validator(row.signer):
            raise Reject(Reason.NOT_A_VALIDATOR)
        known = self.standings.get(verdict.submission)
        before = known.rows.get(row.signer) if known else None
        if before is not None and before.sequence >= row.sequence:
            raise Ignore(Reason.LATE, "an older verdict")
        if verdict.submission not in self.submissions:
            # [IGNORE] more than an honest validator can be ahead of us; examined again like any early row
            if before is None and len(self._early[row.signer]) >= self._most_early:
                raise Ignore(Reason.GAP, "too many verdicts on submissions that were not seen")
            self._early[row.signer].add(verdict.submission)
        standing = self.standings[verdict.submission]
        standing.verdicts[row.signer] = verdict
        standing.rows[row.signer] = row
        self._objections.note(verdict.submission, standing.verdicts, quorum=self.quorum)
        self._settle(verdict.submission)
        return verdict

    def admit_seal(self, row: Envelope) -> SealedVerdict:
        """Adopt a validator's seal on a submission; the first one counts. Raises Malformed, Reject, or Ignore for a
        second seal and for more early seals than an honest validator can be ahead of us."""
        sealed = self.open(row)
        if not isinstance(sealed, SealedVerdict):
            raise Malformed("not a seal")
        # [REJECT] only validators of the ledger's set are counted
        if not self.is_validator(row.signer):
            raise Reject(Reason.NOT_A_VALIDATOR)
        if row.signer in self.seals.get(sealed.submission, ()):
            raise Ignore(Reason.LATE, "sealed already")
        if sealed.submission not in self.submissions:
            if len(self._early_seals[row.signer]) >= self._most_early:
                raise Ignore(Reason.GAP, "too many seals on submissions that were not seen")
            self._early_seals[row.signer].add(sealed.submission)
        self.seals[sealed.submission][row.signer] = sealed.seal
        self._sealed_steps[sealed.submission] = sealed.step
        return sealed

    def _settle(self, digest: str) -> None:
        admitted = self.submissions.get(digest)
        if admitted is not None and self._has_quorum(admitted):
            self._accepted.setdefault(self._place(admitted.submission), digest)  # the first to reach quorum counts

    def _place(self, submission: Submission) -> tuple[str, int, int]:
        """The place that can be accepted only once: (node by its first key, step, index)."""
        return self.root_of(submission.node), submission.step, submission.index

    def _was_handed_in_before(self, row: Envelope, submission: Submission) -> bool:
        """As in `Submissions`; also true when a quorum has judged the submission."""
        standing = self.standings.get(row.digest)
        said = standing.verdicts.values() if standing else ()
        is_judged = sum(is_verdict_on(verdict, submission) for verdict in said) >= self.quorum
        return is_judged or super()._was_handed_in_before(row, submission)

    def _has_quorum(self, admitted: AdmittedSubmission) -> bool:
        standing, submission = self.standings.get(admitted.digest), admitted.submission
        if standing is None or standing.count("accept", submission) < self.quorum:
            return False
        # a fault is answered by a quorum of acceptances that audited
        if standing.count("fault", submission) == 0:
            return True
        return standing.count("accept", submission, audited=True) >= self.quorum

    def is_accepted(self, digest: str) -> bool:
        """Whether a quorum accepts this submission and it was the first of its (node, step,
        index) to reach a quorum."""
        admitted = self.submissions.get(digest)
        if admitted is None or not self._has_quorum(admitted):
            return False
        return self._accepted.get(self._place(admitted.submission), digest) == digest

    def disputed(self) -> frozenset[str]:
        """Digests of submissions with a fault verdict that no quorum of audited acceptances has answered."""
        return frozenset(
            digest
            for digest, standing in self.standings.items()
            if any(verdict.outcome == "fault" for verdict in standing.verdicts.values())
            and not self._is_answered(digest, standing)
        )

    def is_doubted(self, digest: str) -> bool:
        """Whether a validator calls it a fault, or audited and refused it with an objection that obliges others to
        audit, and no quorum of audited acceptances has answered."""
        standing = self.standings.get(digest)
        if standing is None or self._is_answered(digest, standing):
            return False
        seen = len(self.submissions)
        return any(
            said.outcome == "fault" or (is_objection(said) and self._objections.obliges(digest, validator, seen=seen))
            for validator, said in standing.verdicts.items()
        )

    def _is_answered(self, digest: str, standing: Standing) -> bool:
        admitted = self.submissions.get(digest)
        if admitted is None:  # not seen here, so the verdicts cannot be compared with it
            return sum(v.outcome == "accept" and v.audited for v in standing.verdicts.values()) >= self.quorum
        return standing.count("accept", admitted.submission, audited=True) >= self.quorum

    def rival(self, submission: Submission, digest: str) -> str | None:
        """The other submission of the same index that was accepted first, if any."""
        other = self._accepted.get(self._place(submission))
        return other if other != digest else None

    def accepted(self) -> Iterator[AdmittedSubmission]:
        """Every accepted submission, in the order of admission."""
        return (item for digest, item in list(self.submissions.items()) if self.is_accepted(digest))

    def forget_before(self, step: int) -> None:
        """As in `Submissions`; also drop the verdicts and seals of those steps."""
        super().forget_before(step)
        for digest in [d for d, s in self.standings.items() if all(v.step < step for v in s.verdicts.values())]:
            for signer in self.standings.pop(digest).verdicts:
                self._early[signer].discard(digest)
            self._objections.forget(digest)
        for digest in [d for d, sealed in self._sealed_steps.items() if sealed < step]:
            del self._sealed_steps[digest]
            for signer in self.seals.pop(digest, {}):
                self._early_seals[signer].discard(digest)
        for place in [p for p in self._accepted if p[1] < step]:
            del self._accepted[place]
