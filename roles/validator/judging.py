"""Takes a submission that passed the gate to a signed verdict, and tries again when what it was waiting for arrives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from dht.envelope import Envelope
from dht.errors import NodeError
from ledger.records import Commit
from roles import rules
from roles.context import RunContext
from roles.fetching import Fetches
from roles.messages import Submission, Verdict
from roles.prefetch import Prefetch
from roles.rules import PASSING, Ignore, Reason, Reject
from roles.trusted import AdmittedSubmission
from roles.validator.gate_faults import GateFaults
from roles.validator.histories import Histories
from roles.validator.items import LONGEST_RETRY_MS, Item, Items
from roles.validator.pacing import Pacing
from roles.validator.probation import Probation
from roles.validator.records import JudgedRows, place_of_verdict
from roles.validator.signing import Signing
from roles.verification import Finding, Verifier
from roles.verification.policies import PolicyShelf

log = structlog.get_logger()

BESIDE = frozenset({Reason.REPEATED_EQUIVOCATION, Reason.NOT_ADMITTED})
"""Faults that show only in other submissions or in the head at the time, not in the submission alone."""
TRIES_BEFORE_MISSING = 3


class Judging:
    """Everything this validator has to judge; `turn` starts whatever can be judged now."""

    def __init__(
        self,
        context: RunContext,
        *,
        verifier: Verifier,
        prefetch: Prefetch,
        shelf: PolicyShelf,
        records: JudgedRows,
        signing: Signing,
        audits: Callable[[str], bool],
    ) -> None:
        spec, trusted = context.spec, context.trusted
        self.items = Items(trusted=trusted, records=records, node=context.node, clock=context.clock)
        self._spec, self._trusted, self._observer = spec, trusted, context.observer
        self._records, self._signing, self._clock = records, signing, context.clock
        self._compute, self._audits = context.compute, audits
        self._verifier, self._prefetch, self._shelf = verifier, prefetch, shelf
        self._blobs, self._pacing = Fetches(context.relays), Pacing(context.clock)
        self._histories = Histories(spec.checks.joined, records)
        is_sampled = spec.checks.audit_rate < 1000
        self._probation = Probation(spec.checks.probation if is_sampled else 0, records)
        self._fetches: set[asyncio.Task[None]] = set()
        self._pinned: Counter[str] = Counter()  # policies in use for auditing evidence
        self._gate_faults = GateFaults(trusted)
        context.observer.listen(self._gate_faults.note)

    @property
    def gate_rows(self) -> Mapping[str, Envelope]:
        """Rows that the gate found at fault, by digest; kept current."""
        return self._gate_faults.rows

    def resume(self, group: asyncio.TaskGroup) -> None:
        """Restore what was judged before a restart, and announce it again."""
        for opened in self._records.opened():
            self._trusted.reopen_step(opened)
        for row, in_time in self._records.rows():
            self.items.readmit(row, in_time)
        for verdict, sequences in self._records.verdicts():
            self._verifier.duplicates.add(sequences, place_of_verdict(verdict))
            if (item := self.items.get(verdict.submission)) is not None:
                item.verdict = verdict
            else:
                self._gate_faults.keep(verdict)
            group.create_task(self._signing.announce(verdict))

    async def turn(self, group: asyncio.TaskGroup) -> None:
        """Register what is new, and start everything that can be done now as tasks of the group."""
        self.items.note_new()
        self._fetch_policies(group)
        for digest, submission, reason in self._gate_faults.take():
            group.create_task(self._sign_gate_fault(digest, submission, reason))
        for item in self.items.due():
            if self._can_judge(item) and self._pacing.begin(item.admitted.submission.node):
                item.busy = True
                group.create_task(self._judge(item))
        await self._shelf.keep_only(self._policies_wanted() | {self._prefetch.manifest})

    async def prefetch(self) -> None:
        """Fetch checkpoints that relays announce before they are committed, until cancelled."""
        await self._prefetch.run(self._newest_held)

    def _newest_held(self) -> str:
        """Manifest digest of the newest committed checkpoint on this disk, from which deltas start; empty for none."""
        commits = self._trusted.view.commits if self._trusted.view else {}
        held = (commits[step].manifest for step in sorted(commits, reverse=True))
        return next((manifest for manifest in held if self._shelf.has(manifest)), "")

    def stop(self) -> None:
        """Cancel fetches of policies."""
        for task in self._fetches:
            task.cancel()

    def forget_before(self, step: int) -> None:
        """Drop items of steps below `step`, and stop publishing their verdicts."""
        for item in self.items.forget_before(step):
            self._blobs.forget(item.admitted)
            if item.verdict is not None:
                self._signing.withdraw(item.verdict)
        for verdict in self._gate_faults.forget_before(step):
            self._signing.withdraw(verdict)

    def _can_judge(self, item: Item) -> bool:
        """Whether the item's policy is on this disk, or the item can be refused without it."""
        return self._shelf.has(item.admitted.submission.policy) or self.items.refusal_by_rival(item) is not None

    # -- judging -------------------------------------------------------------------------------------------------

    async def _judge(self, item: Item) -> None:
        began = self._clock()
        try:
            finding = await self._find(item)
            if finding is not None and not _is_said(item.verdict, finding):
                admitted = item.admitted
                item.verdict = await self._signing.sign(
                    admitted.submission, admitted.digest, finding, began=began, before=item.verdict
                )
        finally:
            item.busy = False
            self._observer.wake()

    async def _find(self, item: Item) -> Finding | None:
        finding: Finding | None = None
        try:
            finding = self.items.refusal_by_rival(item) or await self._audit(item)
        finally:
            self._pacing.end(item.admitted.submission.node, finding)
            self._observer.wake()  # another submission of the node may start, though this one is not signed yet
        return finding

    async def _sign_gate_fault(self, digest: str, submission: Submission, reason: Reason) -> None:
        finding = Finding("fault", reason)
        self._gate_faults.keep(await self._signing.sign(submission, digest, finding, began=self._clock()))

    async def _audit(self, item: Item) -> Finding | None:
        """Fetch the blob and run the checks; None while there is no finding."""
        digest = item.admitted.digest
        try:
            newest = self._trusted.submissions.get(digest, item.admitted)  # a newer row may name other relays
            data = await self._blobs.get(newest, limit=self._spec.checks.max_blob)
        except (NodeError, TimeoutError):
            return self._note_failure(item, Finding("soft", Reason.BLOB_MISSING))
        submission = item.admitted.submission
        try:
            finding = await self._compute.run(self._verify, item.admitted, data, self._must_audit(item))
        except Exception as error:  # whatever goes wrong in this node condemns nobody and stops nothing  # VAL-05
            log.error("submission.unverified", submission=digest, why=f"{type(error).__name__}: {error}")
            return self._note_failure(item, None)
        if finding.reason in PASSING:
            self._note_failure(item, None)
        if item.verdict is None:
            self._probation.note(finding, node=submission.node)
        name = self._trusted.root_of(submission.node)
        return self._histories.weigh(finding, node=name, submission=digest, step=submission.step)

    def _must_audit(self, item: Item) -> bool:
        """Whether to run the model: decided by the coin, but always when another validator called it a fault or audited
        and refused it, and for nodes that are on probation or whose history deviates."""
        digest, node = item.admitted.digest, item.admitted.submission.node
        is_watched = self._probation.holds(node) or self._histories.deviates(self._trusted.root_of(node))
        return self._audits(digest) or is_watched or self._trusted.is_doubted(digest)

    def _verify(self, admitted: AdmittedSubmission, data: bytes, audit: bool) -> Finding:
        self._shelf.load(admitted.submission.policy)
        return self._verifier.judge(admitted.submission, seed=admitted.seed, data=data, audit=audit)

    async def look_again(self, row: Envelope, reason: int) -> bool | None:
        """Audit the submission in a row of evidence again, from scratch. Returns whether it is at fault, or
        None when that cannot be decided: blob, policy or assignment is unavailable, or the fault does not
        show in the submission alone."""
        if reason in BESIDE:
            return None
        submission = self._trusted.open_submission(row)
        seed = self._trusted.seed_of(submission.node, submission.step, submission.index)
        try:
            rules.check_counts(submission, self._spec)
            committed = self._trusted.committed(submission.policy_step)
            rules.check_policy(submission, committed=committed, async_level=self._spec.training.async_level)
        except Reject:
            return True
        except Ignore:
            return None
        return (
            None if seed is None else await self._audit_again(AdmittedSubmission(submission, row.digest, seed, (), row))
        )

    async def _audit_again(self, admitted: AdmittedSubmission) -> bool | None:
        policy = admitted.submission.policy
        self._pinned[policy] += 1
        try:
            commit = self._trusted.view.commits.get(admitted.submission.policy_step) if self._trusted.view else None
            if commit is not None and not self._shelf.has(policy):
                await self._fetch_policy(commit)
            if not self._shelf.has(policy):
                return None
            data = await self._blobs.get(admitted, limit=self._spec.checks.max_blob)
            return (await self._compute.run(self._verify, admitted, data, True)).outcome == "fault"
        except (NodeError, TimeoutError):
            return None
        except Exception as error:  # as in `_audit`  # VAL-05
            log.error("submission.unverified", submission=admitted.digest, why=f"{type(error).__name__}: {error}")
            return None
        finally:
            self._pinned[policy] -= 1
            if not self._pinned[policy]:
                del self._pinned[policy]

    def _note_failure(self, item: Item, finding: Finding | None) -> Finding | None:
        """Schedule another try. From the third failure on, returns the finding, which holds until a try succeeds."""
        item.failures += 1
        item.due = self._clock() + min(250 * 2 ** min(item.failures, 10), LONGEST_RETRY_MS)
        return finding if item.failures >= TRIES_BEFORE_MISSING else None

    # -- policies ------------------------------------------------------------------------------------------------

    def _policies_wanted(self) -> set[str]:
        """The newest committed checkpoints and those that unjudged items name."""
        commits = self._trusted.view.commits if self._trusted.view else {}
        newest = {commits[step].manifest for step in sorted(commits)[-(self._spec.training.async_level + 2) :]}
        pinned = {manifest for manifest, count in self._pinned.items() if count}
        return newest | pinned | {item.admitted.submission.policy for item in self.items if self.items.is_open(item)}

    def _fetch_policies(self, group: asyncio.TaskGroup) -> None:
        wanted = self._policies_wanted()
        for commit in self._trusted.view.commits.values() if self._trusted.view else ():
            if commit.manifest in wanted and self._shelf.wants(commit.manifest):
                self._shelf.reserve(commit.manifest)
                task = group.create_task(self._fetch_policy(commit))
                self._fetches.add(task)
                task.add_done_callback(self._fetches.discard)

    async def _fetch_policy(self, commit: Commit) -> None:
        await self._shelf.fetch(commit)
        self._observer.wake()


def _is_said(said: Verdict | None, finding: Finding) -> bool:
    """Whether the current verdict already has this outcome, reason and audit flag."""
    found = (finding.outcome, int(finding.reason), finding.audited)
    return said is not None and (said.outcome, said.reason, said.audited) == found
