"""The leading trainer's loop, for one term: collect a batch, move the head, make the GRPO step, hand the
checkpoint to publication.

The head moves to the next step before the update runs, so workers never wait for it. A checkpoint is broadcast and
committed while the next batch is collected; at most `async_level` of them may be pending.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog

from dht.encoding import ZERO_DIGEST
from dht.errors import NodeError
from dht.identity import NodeKey
from ledger.errors import LedgerError
from ledger.records import FIRST_TERM
from roles.context import RunContext
from roles.inference.errors import BadCheckpoint
from roles.inference.model_sizes import read_sizes
from roles.lifecycle import DiskFailed, Lifecycle, fault_of
from roles.messages import SHARE_ALL, OpenStep
from roles.ports import Ledger
from roles.trainer.closing import ClosedBatch, close_batch
from roles.trainer.deltas import Deltas
from roles.trainer.demand_control import DemandControl
from roles.trainer.errors import Fenced, StateMissing
from roles.trainer.heads import HeadBoard
from roles.trainer.journal import Journal
from roles.trainer.lease import RENEW_TIMEOUT, LeaseKeeper
from roles.trainer.lifecycle import TrainerState
from roles.trainer.pool import Pool
from roles.trainer.publication import Publication
from roles.trainer.rebuild import Rebuild
from roles.trainer.resuming import Resuming
from roles.trainer.state_uploads import StateUploads
from roles.trainer.stepping import Learner, Stepper
from roles.trainer.tallied import is_tallied

log = structlog.get_logger()

IDLE_SECONDS = 0.5
FOLLOWING = "following"
"""Folder, below the trainer's own, of checkpoints fetched from relays."""


class Leading:
    """One term of one leader. `base` holds the base model's files, `state` is the trainer's own folder."""

    def __init__(
        self,
        context: RunContext,
        *,
        term: int,
        lifecycle: Lifecycle[TrainerState],
        ledger: Ledger,
        learner: Learner,
        key: NodeKey,
        base: Path,
        state: Path,
        linger: float,
        state_every: int,
    ) -> None:
        spec, trusted, observer, clock = context.spec, context.trusted, context.observer, context.clock
        self._term, self._lifecycle, self._node = term, lifecycle, context.node
        self._spec, self._trusted, self._compute, self._clock = spec, trusted, context.compute, clock
        self._ledger, self._base, self._linger = ledger, base, linger
        self._watch = observer.watch()
        self._journal = Journal(state)
        self._heads = HeadBoard(
            term=term, trusted=trusted, observer=observer, voice=context.voice, journal=self._journal
        )
        self._stepper = Stepper(
            spec, term=term, learner=learner, key=key, journal=self._journal, clock=clock, state_every=state_every
        )
        self._pool = Pool(trusted=trusted, observer=observer, relays=context.relays, vocabulary=_vocabulary_of(base))
        self._states = StateUploads(run=spec.run_id, relays=context.relays, journal=self._journal)
        self._publication = Publication(
            term=term,
            trusted=trusted,
            voice=context.voice,
            ledger=ledger,
            relays=context.relays,
            journal=self._journal,
            heads=self._heads,
            clock=clock,
            deltas=Deltas(spec, term=term, key=key, journal=self._journal, folder=state / "deltas", clock=clock),
            committed=self._states.offer,
        )
        self._lease = LeaseKeeper(
            term=term, node=context.node, trusted=trusted, observer=observer, ledger=ledger, clock=clock
        )
        self._resuming = Resuming(
            term=term,
            stepper=self._stepper,
            trusted=trusted,
            journal=self._journal,
            compute=context.compute,
            rebuild=Rebuild(context, journal=self._journal, learner=learner, key=key, following=state / FOLLOWING),
        )
        self._demand_control = DemandControl(trusted=trusted, pool=self._pool, heads=self._heads, clock=clock)
        self._said = ""
        self._first = 0  # the first step of this term

    async def run(self) -> None:
        """Train until the run has ended. Raises Fenced once another trainer leads, or another NodeError with a message
        for the operator when it cannot go on. Afterwards only what is committed is still published."""
        fault: NodeError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._lease.run())]
                await self._restore()
                others = (self._pool.run(), self._publication.run(), self._states.run())
                beside += [group.create_task(other) for other in others]
                await self._train()
                await self._end()
                for task in beside:
                    task.cancel()
        except* (NodeError, OSError) as errors:
            fault = fault_of(errors, "trainer")
        if fault is not None:
            raise await self._explained(fault)

    async def _explained(self, fault: NodeError) -> NodeError:
        """The fault, or Fenced instead if another trainer leads: the ledger may refuse us before our
        view shows the new leader."""
        if not isinstance(fault, Fenced | DiskFailed):
            with suppress(LedgerError, TimeoutError):
                async with asyncio.timeout(RENEW_TIMEOUT):
                    lease = await self._ledger.lease()
                    if (lease.term, lease.leader) != (self._term, self._node):
                        fault = Fenced(str(fault))
        if isinstance(fault, Fenced):
            self._heads.withdraw()
            self._publication.withdraw()
            await self._compute.run(lambda: None)  # a running step cannot be interrupted, and must not write later
        return fault

    # -- start ---------------------------------------------------------------------------------------------------

    async def _restore(self) -> None:
        """Compare disk and ledger, then resume: our uncommitted checkpoints are sent again unchanged, and what the
        ledger has beyond them, or instead of them, is fetched."""
        made = await self._resuming.run(self._wait)
        commits = self._trusted.view.commits if self._trusted.view else {}
        if made < 0:
            await self._compute.run(self._stepper.prepare_base, self._base)
        for step in range(max(0, made - self._spec.training.async_level - 1), max(0, made) + 1):
            if step not in commits and self._journal.manifest(step) is not None:
                self._publication.publish(step, final=self._is_last(step))
        self._resuming.mark_used(self._pool, made)
        await self._heads.restore()
        self._first = self._stepper.made + 1
        if made >= 0:
            log.info("trainer.resumed", checkpoint=made, committed=max(commits, default=-1), term=self._term)

    def _is_last(self, step: int) -> bool:
        commit = self._trusted.view.commits.get(step) if self._trusted.view else None
        batch = self._journal.batch(step)
        return (commit is not None and commit.final) or (batch is not None and batch.is_last(self._spec.training))

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        training = self._spec.training
        step = self._stepper.made + 1
        if self._is_last(step - 1):
            return
        await self._committed(0)
        await self._open(step, rounds=self._rounds_before(step))
        while True:
            self._lifecycle.on("opened")
            batch = await self._batch(step)
            if training.async_level == 0:  # the next head waits for this very checkpoint
                await self._step(batch)
            await self._gate(batch)
            if not batch.is_last(training):
                await self._open(step + 1, rounds=batch.rounds)
            self._lifecycle.on("head moved")
            if training.async_level > 0:
                await self._step(batch)
            if batch.is_last(training):
                return
            step += 1

    def _rounds_before(self, step: int) -> int:
        before = self._journal.batch(step - 1)
        return before.rounds if before else 0

    async def _open(self, step: int, *, rounds: int) -> None:
        """Publish that this step is being collected, unless that was done before a restart."""
        newest = self._trusted.newest_commit()
        if newest is None or (self._heads.head is not None and self._heads.head.step >= step):
            return
        opened = self._demand(step)
        await self._heads.open(opened, newest=newest, state="saturated" if rounds else "collecting")
        self._trusted.forget_before(step - self._spec.training.async_level - 1)
        self._pool.forget_before(step)
        log.info("step.opened", step=step, policy_step=newest.step, limit=opened.limit)

    def _demand(self, step: int) -> OpenStep:
        """Limit and share of a step. A step that the previous leader may have opened keeps its share, or admits
        everybody: workers that sampled under the old share must not be found at fault."""
        demand, known = self._demand_control.first(step), self._trusted.opened.get(step)
        if known is not None:
            return OpenStep(step=step, limit=max(demand.limit, known.limit), share=known.share)
        was_open = self._term > FIRST_TERM and step <= self._first + self._spec.training.async_level
        return OpenStep(step=step, limit=demand.limit, share=SHARE_ALL if was_open else demand.share)

    async def _batch(self, step: int) -> ClosedBatch:
        """The step's batch: the one closed before a restart, or a new one, written to disk
        before anything depends on it."""
        kept = self._journal.batch(step)
        if kept is not None:
            self._lifecycle.on("batch full")
            return kept
        began = self._clock()
        batch = await self._collect(step)
        await asyncio.to_thread(self._journal.save_batch, batch)
        self._pool.mark_used((group.place for group in batch.groups), step)
        self._lifecycle.on("batch full")
        self._stepper.timeline(step)["collect"] = (self._clock() - began) / 1000
        log.info(
            "batch.closed",
            step=step,
            outcome=batch.outcome,
            groups=batch.usable,
            dropped=len(batch.groups) - batch.usable,
            reward=round(batch.reward, 4),
            seconds=(self._clock() - began) / 1000,
        )
        if batch.outcome == "saturated":
            log.warning("run.saturated", step=step, rounds=batch.rounds, reward=round(batch.reward, 4))
        return batch

    async def _collect(self, step: int) -> ClosedBatch:
        rounds = self._rounds_before(step)
        while True:
            self._pool.take_accepted()
            batch = close_batch(self._pool.groups(step), step=step, training=self._spec.training, rounds_before=rounds)
            if batch is not None:
                return batch
            await self._demand_control.for_more(step)
            await self._watch.changed(IDLE_SECONDS)

    async def _gate(self, batch: ClosedBatch) -> None:
        """Wait until at most `async_level` checkpoints are uncommitted; meanwhile the head's state is `waiting`."""
        needed = max(0, batch.step - self._spec.training.async_level)
        began = self._clock()
        if self._trusted.committed(needed) is None:
            if self._heads.head is not None and self._heads.head.step == batch.step:  # may differ after a restart
                await self._heads.set_state("waiting")
            await self._committed(needed)
        self._stepper.timeline(batch.step)["gate"] = (self._clock() - began) / 1000

    async def _committed(self, step: int) -> None:
        while self._trusted.committed(step) is None:
            await self._wait(f"checkpoint {step} is not committed yet")

    async def _step(self, batch: ClosedBatch) -> None:
        await self._compute.run(self._stepper.make, batch)
        self._publication.publish(batch.step, final=batch.is_last(self._spec.training))

    # -- end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Wait for the final commit, publish the end of the run, and stay until it is tallied or
        `linger` seconds have passed."""
        last = self._stepper.made
        await self._committed(last)
        commit = self._trusted.newest_commit()
        if self._heads.head is None and commit is not None:  # the leader we took over from had not published the end
            await self._heads.open(OpenStep(step=last, limit=0, share=SHARE_ALL), newest=commit, state="ended")
        await self._heads.set_state("ended")
        self._lifecycle.on("last")
        log.info("run.ended", step=last, manifest=self._trusted.committed(last) or ZERO_DIGEST)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                while commit is not None and not await is_tallied(self._ledger, commit):
                    await self._watch.changed(IDLE_SECONDS)

    async def _wait(self, why: str) -> None:
        if why != self._said:
            log.info("trainer.waiting", why=why)
        self._said = why
        await self._watch.changed(IDLE_SECONDS)


def _vocabulary_of(base: Path) -> int:
    """Number of token ids of the base model. Raises StateMissing."""
    try:
        return read_sizes(base).vocabulary
    except BadCheckpoint as error:
        raise StateMissing(f"{base / 'config.json'} does not tell the model's vocabulary") from error
