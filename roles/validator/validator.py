"""The validator's loops: judge submissions, tally epochs, strike nodes, until the run has ended and all is credited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dht.identity import NodeKey
from ledger.records import Commit
from roles.audits import AuditCoin, sketch_secret
from roles.context import RunContext
from roles.evidence import MAX_EVIDENCE
from roles.inference.engine import Engine
from roles.ports import Ledger
from roles.prefetch import Prefetch
from roles.receipts import Receipts
from roles.tally import MAX_BLOB
from roles.tasks import Task
from roles.validator.faults import FaultBook
from roles.validator.gathering import Gathering
from roles.validator.items import Item
from roles.validator.judging import Judging
from roles.validator.kept_blobs import KeptBlobs
from roles.validator.published import PublishedSizes
from roles.validator.records import JudgedRows
from roles.validator.signing import Signing
from roles.validator.striking import Striking
from roles.validator.tallying import Tallying
from roles.verification import CHECKS, Check, Verifier
from roles.verification.policies import PolicyShelf

EXTRA_STEPS = 8
"""Maximum number of older steps that are still read because verdicts on them are missing."""
STRIKE_SECONDS = 2.0
"""Seconds between two turns of `Striking`."""
END_QUIET_MS, END_SETTLE_MS, END_PATIENCE_MS = 3_000, 20_000, 600_000
"""Waiting times after the final commit: for stragglers, for the other validators' verdicts, for a quorum to tally."""


class Validator:
    """One validator of a run. `run` returns once the run has ended and nothing creditable is left."""

    def __init__(
        self,
        context: RunContext,
        *,
        ledger: Ledger,
        engine: Engine,
        task: Task,
        key: NodeKey,
        state: Path,
        audits: Callable[[str], bool] | None = None,
        checks: Sequence[Check] = CHECKS,
    ) -> None:
        spec, trusted, observer, clock = context.spec, context.trusted, context.observer, context.clock
        voice, relays, checkpoints = context.voice, context.relays, state / "checkpoints"
        self.spec, self.trusted, self.node = spec, trusted, context.node
        self._observer, self._clock = observer, clock
        observer.watch_seals = True
        self._records = JudgedRows(state / "judged.sqlite")
        self._receipts = Receipts(relays=relays, voice=voice, folder=state / "receipts", run=spec.run_id)
        secret = sketch_secret(key, spec.run_id)
        self.judging = Judging(
            context,
            verifier=Verifier(spec=spec, engine=engine, task=task, checks=checks, secret=secret),
            prefetch=Prefetch(trusted=trusted, observer=observer, relays=relays, folder=checkpoints),
            shelf=PolicyShelf(
                relays=relays, folder=checkpoints, engine=engine, compute=context.compute, receipts=self._receipts
            ),
            records=self._records,
            signing=Signing(trusted=trusted, observer=observer, voice=voice, records=self._records, clock=clock),
            audits=audits or AuditCoin(key, run=spec.run_id, rate=spec.checks.audit_rate),
        )
        self._faults = FaultBook(trusted=trusted, records=self._records, gate_rows=self.judging.gate_rows)
        self._published = PublishedSizes(relays=relays, records=self._records)
        self._gathering = Gathering(trusted=trusted, observer=observer, faults=self._faults, clock=clock)
        self.tallying = Tallying(
            context,
            ledger=ledger,
            blobs=KeptBlobs(relays, state / "tallies", limit=MAX_BLOB),
            gathering=self._gathering,
            published=self._published,
            records=self._records,
        )
        self.striking = Striking(
            context,
            ledger=ledger,
            blobs=KeptBlobs(relays, state / "evidence", limit=MAX_EVIDENCE),
            faults=self._faults,
            reaudit=self.judging.look_again,
        )
        self._ended_at: int | None = None
        self._forgotten = 0

    async def run(self) -> None:
        """Judge and tally until the run is over."""
        over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                await self._resume(group)
                beside = [
                    group.create_task(self._receipts.run()),
                    group.create_task(self.judging.prefetch()),
                    group.create_task(self._published.keep_up(self._commits)),
                ]
                group.create_task(self._tally_until(over))
                group.create_task(self._strike_until(over))
                await self._judge_until(over, group)
                for task in beside:
                    task.cancel()
        finally:
            self._records.close()

    def _commits(self) -> Mapping[int, Commit]:
        return self.trusted.view.commits if self.trusted.view else {}

    async def _resume(self, group: asyncio.TaskGroup) -> None:
        watch = self._observer.watch()
        while self.trusted.view is None:
            await watch.changed(timeout=1.0)
        self.judging.resume(group)
        await self.tallying.resume()

    async def _judge_until(self, over: asyncio.Event, group: asyncio.TaskGroup) -> None:
        watch = self._observer.watch()
        while not over.is_set():
            await watch.changed(timeout=1.0)
            await self.judging.turn(group)
            if self._is_over():
                over.set()
        self.judging.stop()

    async def _tally_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self._gathering.observe()
            await self.tallying.turn(is_settled=self._is_settled)
            self._forget_final()
            try:
                async with asyncio.timeout(0.5):
                    await over.wait()
            except TimeoutError:
                continue

    async def _strike_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.striking.turn()
            try:
                async with asyncio.timeout(STRIKE_SECONDS):
                    await over.wait()
            except TimeoutError:
                continue

    def _undecided(self) -> list[Item]:
        """Creditable items that are undecided: neither accepted by a quorum nor refused by this validator."""
        return [
            item
            for item in self.judging.items
            if not self.tallying.is_credited(item.admitted.submission)
            and self.tallying.may_be_credited(item.admitted.submission)
            and not self.trusted.is_accepted(item.admitted.digest)
            and self.judging.items.may_be_accepted(item)
        ]

    def _is_settled(self) -> bool:
        """Whether no creditable item of a committed step waits for a verdict. At the end of the run none may wait for
        its audit window either; before that, the next epoch takes what this one leaves out."""
        newest = self.trusted.newest_commit()
        if newest is not None and newest.final and self._gathering.is_waiting:
            return False
        committed = self._commits()
        return not any(item.step in committed for item in self._undecided())

    def _is_over(self) -> bool:
        """Whether the run has ended and nothing creditable is left that is worth waiting for."""
        newest = self.trusted.newest_commit()
        if newest is None or not newest.final:
            return False
        now = self._clock()
        if self._ended_at is None:
            self._ended_at = now
        quiet = now - max([self._ended_at, *(item.seen for item in self.judging.items)])
        items = [item for item in self._undecided() if item.step <= newest.step]
        if self.tallying.has_uncredited(newest.step) or any(self.judging.items.is_pending(item) for item in items):
            return quiet > END_PATIENCE_MS + 1000 * self.spec.checks.audit_window  # not credited before that
        return quiet > (END_SETTLE_MS if items else END_QUIET_MS)

    def _forget_final(self) -> None:
        """Drop what can no longer be credited, and have the observer read the steps that still can."""
        open_steps = {item.step for item in self._undecided()}
        self._observer.extra_steps = set(sorted(open_steps)[-EXTRA_STEPS:])
        oldest = self.tallying.oldest_creditable_step()
        if oldest > self._forgotten:
            self._forgotten = oldest
            self.judging.forget_before(oldest)
            self._records.forget_before(oldest, self.tallying.epoch)
            self.trusted.forget_before(oldest)
