"""The validator: judges every submission it can see, says so under its signature, and keeps the tally with the others.

Two loops of named steps, both over one trusted state: `_judge_turn` (verdicts) and `Tallying.turn` (epochs). Rows that
wait for something (a blob, a policy, another submission of the same index) are looked at again at every turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, TransportError
from dht.identity import NodeKey
from roles import rules
from roles.announce import Voice
from roles.compute import ComputeThread
from roles.inference.engine import Engine
from roles.judged import JudgedRows, place_of_verdict
from roles.messages import Submission, Verdict, open_row
from roles.observer import Observer
from roles.ports import Clock, Ledger, Relays
from roles.rules import Ignore, Reason, Refusal, Reject
from roles.spec import RunSpec
from roles.tallying import Tallying
from roles.tasks import Task
from roles.trusted import AdmittedSubmission, TrustedState
from roles.verification import CHECKS, Check, Finding, Verifier
from roles.verification.policies import PolicyShelf

log = structlog.get_logger()

GATE_FAULTS = frozenset(
    {Reason.STALE_POLICY, Reason.WRONG_POLICY, Reason.NOT_ADMITTED, Reason.WRONG_COUNTS, Reason.BLOB_TOO_LARGE}
)
GATE_FAULTS_PER_STEP = 4
"""Verdicts of this kind a node can cause in a step: it may be struck, but not make us write for ever."""
PASSING = frozenset({Reason.BLOB_MISSING, Reason.SCORING_TIMEOUT})
"""Soft refusals that become an acceptance once resolved."""
EQUIVOCATIONS_FORGIVEN = 2
FETCHES = 8
FETCH_SECONDS = 30
TRIES_BEFORE_MISSING = 3
LONGEST_RETRY_MS = 30_000
EXTRA_STEPS = 8
"""Older steps whose rows are still read, because others' verdicts on them are missing."""
END_QUIET_MS, END_SETTLE_MS, END_PATIENCE_MS = 3_000, 20_000, 600_000
"""After the final commit: for stragglers, for the verdicts of others, for a quorum to tally."""


def audit_always(digest: str) -> bool:
    """The coin of a small run: every submission is audited."""
    return True


@dataclass(slots=True)
class Item:
    """What this validator knows of one submission."""

    admitted: AdmittedSubmission
    in_time: bool
    verdict: Verdict | None = None
    busy: bool = False
    failures: int = 0
    due: int = 0  # unix milliseconds of the next try
    seen: int = 0


class Validator:
    """One validator of a run. `run` returns when the run has ended and nothing creditable is left."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        trusted: TrustedState,
        observer: Observer,
        voice: Voice,
        ledger: Ledger,
        relays: Relays,
        engine: Engine,
        task: Task,
        key: NodeKey,
        state: Path,
        clock: Clock,
        compute: ComputeThread,
        audits: Callable[[str], bool] = audit_always,
        checks: Sequence[Check] = CHECKS,
    ) -> None:
        self.spec, self.trusted, self.node = spec, trusted, key.node
        self.items: dict[str, Item] = {}
        self._observer, self._voice, self._relays = observer, voice, relays
        self._clock, self._compute, self._audits = clock, compute, audits
        self._verifier = Verifier(spec=spec, run=trusted.run, engine=engine, task=task, checks=checks)
        self._shelf = PolicyShelf(relays=relays, folder=state / "checkpoints", engine=engine, compute=compute)
        self._records = JudgedRows(state / "judged.sqlite")
        self.tallying = Tallying(
            spec=spec,
            trusted=trusted,
            observer=observer,
            voice=voice,
            ledger=ledger,
            relays=relays,
            node=key.node,
            folder=state / "tallies",
            records=self._records,
            clock=clock,
        )
        self._places, self._lips = asyncio.Semaphore(FETCHES), asyncio.Semaphore(FETCHES)
        self._gate_faults: dict[str, tuple[Submission, Reason]] = {}
        self._gate_signed: dict[str, Verdict] = {}
        self._gate_counts: Counter[tuple[str, int]] = Counter()
        self._ended_at: int | None = None
        self._forgotten = 0
        observer.listen(self._note_rejected)

    async def run(self) -> None:
        """Judge and tally until the run is over."""
        over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                await self._resume(group)
                group.create_task(self._tally_until(over))
                await self._judge_until(over, group)
        finally:
            self._records.close()

    async def _judge_until(self, over: asyncio.Event, group: asyncio.TaskGroup) -> None:
        watch = self._observer.watch()
        while not over.is_set():
            await watch.changed(timeout=1.0)
            await self._judge_turn(group)
            if self._is_over():
                over.set()

    async def _tally_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.tallying.turn(is_settled=self._is_settled)
            await self._forget_final()
            try:
                async with asyncio.timeout(0.5):
                    await over.wait()
            except TimeoutError:
                continue

    # -- resuming ------------------------------------------------------------------------------------------------

    async def _resume(self, group: asyncio.TaskGroup) -> None:
        """Take back what was judged before a restart, and say it again."""
        watch = self._observer.watch()
        while self.trusted.view is None:
            await watch.changed(timeout=1.0)
        for opened in self._records.opened():
            self.trusted.reopen_step(opened)
        for row, in_time in self._records.rows():
            self._readmit(row, in_time)
        for verdict, sequences in self._records.verdicts():
            self._verifier.duplicates.add(sequences, place_of_verdict(verdict))
            if (item := self.items.get(verdict.submission)) is not None:
                item.verdict = verdict
            else:
                self._gate_signed[verdict.submission] = verdict
            group.create_task(self._announce(verdict))
        await self.tallying.resume()

    def _readmit(self, row: Envelope, in_time: bool) -> None:
        try:
            admitted = self.trusted.readmit_submission(row)
        except (Malformed, Refusal) as error:
            log.warning("row.unreadable", digest=row.digest, why=str(error))
            return
        self.items[row.digest] = Item(admitted, in_time, seen=self._clock())

    # -- judging -------------------------------------------------------------------------------------------------

    async def _judge_turn(self, group: asyncio.TaskGroup) -> None:
        self._note_new()
        self._fetch_policies(group)
        for digest in list(self._gate_faults):
            group.create_task(self._sign_gate_fault(digest))
        for item in self._due():
            item.busy = True
            group.create_task(self._judge(item))
        await self._shelf.keep_only(self._policies_wanted())

    def _note_new(self) -> None:
        """First sight of submissions: in time or late is decided once, and remembered."""
        fresh = [item for digest, item in self.trusted.submissions.items() if digest not in self.items]
        if not fresh:
            return
        for admitted in fresh:
            self.items[admitted.digest] = Item(admitted, self._is_in_time(admitted), seen=self._clock())
        self._keep_rows(self.items[admitted.digest] for admitted in fresh)

    def _keep_rows(self, items: Iterator[Item]) -> None:
        rows = [(item.admitted.submission, item.admitted.row, item.in_time) for item in items]
        steps = {submission.step for submission, _, _ in rows}
        opened = [self.trusted.opened[step] for step in steps if step in self.trusted.opened]
        self._records.keep_rows(rows, opened)

    def _is_in_time(self, admitted: AdmittedSubmission) -> bool:
        head = self.trusted.head
        if head is None:
            return False
        standing = self.trusted.standings.get(admitted.digest)
        others = standing.verdicts.items() if standing else ()
        vouched = any(verdict.outcome == "accept" and name != self.node for name, verdict in others)
        try:
            rules.check_timing(
                admitted.submission, head=head, async_level=self.spec.training.async_level, vouched=vouched
            )
        except Ignore:
            return False
        return True

    def _due(self) -> list[Item]:
        """Items to look at now, ordered so that the engine's weights change rarely."""
        now = self._clock()
        ready = [item for item in self.items.values() if not item.busy and item.due <= now and self._is_ready(item)]
        return sorted(ready, key=lambda item: (item.admitted.submission.policy_step, item.admitted.submission.step))

    def _is_ready(self, item: Item) -> bool:
        if not self._is_open(item):
            return False
        if self._refusal_by_rival(item) is not None:
            return True
        if not item.in_time:
            item.in_time = self._is_in_time(item.admitted)  # another validator may vouch for it by now
            if item.in_time:
                self._keep_rows(iter([item]))
        return item.in_time and not self._waits_for_other(item) and self._shelf.has(item.admitted.submission.policy)

    def _is_open(self, item: Item) -> bool:
        """Whether a verdict is still to be given, or to be given again."""
        verdict, digest = item.verdict, item.admitted.digest
        if verdict is None:
            return True
        if verdict.outcome == "soft":
            return Reason(verdict.reason) in PASSING
        if verdict.outcome == "fault":
            return False
        rival = self.trusted.rival(item.admitted.submission, digest) is not None
        return rival or (not verdict.audited and digest in self.trusted.disputed())

    def _waits_for_other(self, item: Item) -> bool:
        """A validator accepts one submission of an index only; the first it saw comes first."""
        submission, digest = item.admitted.submission, item.admitted.digest
        before = True
        for other in self.trusted.known_digests(submission.node, submission.step, submission.index):
            if other == digest:
                before = False
                continue
            verdict = self.items[other].verdict if other in self.items else None
            if (verdict is None and before) or (verdict is not None and verdict.outcome == "accept"):
                return True
        return False

    def _refusal_by_rival(self, item: Item) -> Finding | None:
        """Another submission of the same index has a quorum: soft, unless the node does that again and again."""
        submission = item.admitted.submission
        if self.trusted.rival(submission, item.admitted.digest) is None:
            return None
        if self.trusted.equivocations(submission.node) > EQUIVOCATIONS_FORGIVEN:
            return Finding("fault", Reason.REPEATED_EQUIVOCATION)
        return Finding("soft", Reason.EQUIVOCATION)

    async def _judge(self, item: Item) -> None:
        began = self._clock()
        try:
            finding = self._refusal_by_rival(item) or await self._audit(item)
            if finding is not None and not self._is_said(item, finding):
                await self._sign(item, finding, began)
        finally:
            item.busy = False
            self._observer.wake()

    def _is_said(self, item: Item, finding: Finding) -> bool:
        said = item.verdict
        return said is not None and (said.outcome, said.reason, said.audited) == (
            finding.outcome,
            finding.reason,
            finding.audited,
        )

    async def _audit(self, item: Item) -> Finding | None:
        """Fetch the blob and run the checks; None when nothing can be said yet."""
        submission = item.admitted.submission
        try:
            async with self._places, asyncio.timeout(FETCH_SECONDS):
                limit = self.spec.checks.max_blob
                data = await self._relays.get(submission.blob, limit=limit, relays=item.admitted.relays)
        except (NodeError, TimeoutError):
            return self._note_failure(item, Finding("soft", Reason.BLOB_MISSING))
        disputed = item.admitted.digest in self.trusted.disputed()
        audit = disputed or self._audits(item.admitted.digest)
        try:
            finding = await self._compute.run(self._verify, item.admitted, data, audit)
        except Exception as error:  # a fault of this node, whatever it is, condemns nobody and stops nothing  # VAL-05
            log.error("submission.unjudged", submission=item.admitted.digest, why=f"{type(error).__name__}: {error}")
            return self._note_failure(item, None)
        if finding.reason in PASSING:
            self._note_failure(item, None)
        return finding

    def _verify(self, admitted: AdmittedSubmission, data: bytes, audit: bool) -> Finding:
        self._shelf.load(admitted.submission.policy)
        return self._verifier.judge(admitted.submission, seed=admitted.seed, data=data, audit=audit)

    def _note_failure(self, item: Item, finding: Finding | None) -> Finding | None:
        """Try again later; after a few tries the finding stands meanwhile."""
        item.failures += 1
        item.due = self._clock() + min(250 * 2 ** min(item.failures, 10), LONGEST_RETRY_MS)
        return finding if item.failures >= TRIES_BEFORE_MISSING else None

    # -- signing -------------------------------------------------------------------------------------------------

    async def _sign(self, item: Item, finding: Finding, began: int) -> None:
        submission, digest = item.admitted.submission, item.admitted.digest
        verdict = build_verdict(submission, digest=digest, finding=finding)
        self._records.keep_verdict(verdict, finding.sequences)
        item.verdict = verdict
        await self._announce(verdict)
        log.info(
            "verdict.signed",
            submission=digest,
            node=submission.node,
            step=submission.step,
            index=submission.index,
            outcome=finding.outcome,
            reason=finding.reason.name.lower(),
            detail=finding.detail,
            tokens=submission.tokens,
            seconds=round((self._clock() - began) / 1000, 3),
        )

    async def _announce(self, verdict: Verdict) -> None:
        try:
            async with self._lips:
                row = await self._voice.announce(verdict)
            self.trusted.admit_verdict(row)
        except (TransportError, Ignore) as error:
            log.info("verdict.delayed", submission=verdict.submission, why=str(error))

    def _note_rejected(self, row: Envelope, refusal: Reject) -> None:
        """A fault the gate found is signed as any other."""
        if row.kind != "submission/1" or refusal.reason not in GATE_FAULTS:
            return
        if row.digest in self._gate_signed or row.digest in self._gate_faults or row.digest in self.items:
            return
        submission = open_row(row, run=self.trusted.run, buckets=self.spec.buckets)
        if isinstance(submission, Submission) and row.signer == submission.node:
            self._gate_counts[(submission.node, submission.step)] += 1
            if self._gate_counts[(submission.node, submission.step)] <= GATE_FAULTS_PER_STEP:
                self._gate_faults[row.digest] = (submission, refusal.reason)

    async def _sign_gate_fault(self, digest: str) -> None:
        submission, reason = self._gate_faults.pop(digest)
        verdict = build_verdict(submission, digest=digest, finding=Finding("fault", reason))
        self._records.keep_verdict(verdict)
        self._gate_signed[digest] = verdict
        await self._announce(verdict)
        log.info(
            "verdict.signed",
            submission=digest,
            node=submission.node,
            step=submission.step,
            index=submission.index,
            outcome="fault",
            reason=reason.name.lower(),
            detail="",
            tokens=submission.tokens,
            seconds=0.0,
        )

    # -- policies ------------------------------------------------------------------------------------------------

    def _policies_wanted(self) -> set[str]:
        """The newest committed checkpoints, and those that unjudged items name."""
        commits = self.trusted.view.commits if self.trusted.view else {}
        newest = {commits[step].manifest for step in sorted(commits)[-(self.spec.training.async_level + 2) :]}
        return newest | {item.admitted.submission.policy for item in self.items.values() if self._is_open(item)}

    def _fetch_policies(self, group: asyncio.TaskGroup) -> None:
        wanted = self._policies_wanted()
        commits = self.trusted.view.commits if self.trusted.view else {}
        for commit in commits.values():
            if commit.manifest in wanted and self._shelf.wants(commit.manifest):
                self._shelf.reserve(commit.manifest)
                group.create_task(self._fetch_policy(commit.step))

    async def _fetch_policy(self, step: int) -> None:
        if self.trusted.view is not None:
            await self._shelf.fetch(self.trusted.view.commits[step])
        self._observer.wake()

    # -- the end -------------------------------------------------------------------------------------------------

    def _undecided(self) -> list[Item]:
        """Creditable items whose fate is open: not accepted by a quorum, and not refused by this validator."""
        return [
            item
            for digest, item in self.items.items()
            if not self.tallying.is_credited(item.admitted.submission)
            and self.tallying.may_be_credited(item.admitted.submission)
            and not self.trusted.is_accepted(digest)
            and (self._is_pending(item) or self._may_be_accepted(item))
        ]

    def _is_pending(self, item: Item) -> bool:
        """Whether this validator itself has not said anything yet, and will."""
        return item.busy or (item.in_time and item.verdict is None and not self._waits_for_other(item))

    def _may_be_accepted(self, item: Item) -> bool:
        """Whether this validator accepted it, or would once a blob arrives."""
        verdict = item.verdict
        return verdict is not None and (verdict.outcome == "accept" or Reason(verdict.reason) in PASSING)

    def _is_settled(self) -> bool:
        """Whether nothing creditable waits for a verdict."""
        committed = self.trusted.view.commits if self.trusted.view else {}
        return not any(item.admitted.submission.step in committed for item in self._undecided())

    def _is_over(self) -> bool:
        """Whether the run has ended and nothing creditable is left, or can be waited for."""
        newest = self.trusted.newest_commit()
        if newest is None or not newest.final:
            return False
        now = self._clock()
        if self._ended_at is None:
            self._ended_at = now
        quiet = now - max([self._ended_at, *(item.seen for item in self.items.values())])
        items = [item for item in self._undecided() if item.admitted.submission.step <= newest.step]
        if self.tallying.has_uncredited(newest.step) or any(self._is_pending(item) for item in items):
            return quiet > END_PATIENCE_MS
        return quiet > (END_SETTLE_MS if items else END_QUIET_MS)

    async def _forget_final(self) -> None:
        """Drop what is final and past dispute; ask for the rows of what is not."""
        oldest = self.tallying.oldest_creditable_step()
        open_steps = {item.admitted.submission.step for item in self._undecided()}
        self._observer.extra_steps = set(sorted(open_steps)[-EXTRA_STEPS:])
        if oldest <= self._forgotten:
            return
        self._forgotten = oldest
        for digest, item in list(self.items.items()):
            if item.admitted.submission.step < oldest and not item.busy:
                del self.items[digest]
                if item.verdict is not None:
                    self._voice.withdraw(item.verdict)
        for digest, verdict in list(self._gate_signed.items()):
            if verdict.step < oldest:
                del self._gate_signed[digest]
                self._voice.withdraw(verdict)
        for place in [place for place in self._gate_counts if place[1] < oldest]:
            del self._gate_counts[place]
        self._records.forget_before(oldest, self.tallying.epoch)
        self.trusted.forget_before(oldest)


def build_verdict(submission: Submission, *, digest: str, finding: Finding) -> Verdict:
    """The message that says a finding."""
    return Verdict(
        run=submission.run,
        submission=digest,
        node=submission.node,
        step=submission.step,
        index=submission.index,
        outcome=finding.outcome,
        reason=int(finding.reason),
        audited=finding.audited,
        tokens=submission.tokens,
        statistics=finding.statistics,
    )
