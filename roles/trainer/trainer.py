"""The trainer's loop: collect a batch, move the head, make the GRPO step, hand the checkpoint to publication.

Design section 3: the head moves to the next step before the update runs, so workers never wait for it; a checkpoint is
broadcast and committed while the next batch is collected, and only `async_level` of them may be under way.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import structlog

from dht.encoding import ZERO_DIGEST
from dht.errors import NodeError
from dht.identity import NodeKey
from ledger.errors import LedgerError
from roles.announce import Voice
from roles.compute import ComputeThread
from roles.messages import OpenStep
from roles.observer import Observer
from roles.ports import Clock, Ledger, Relays
from roles.shardcast.manifest import manifest_digest
from roles.spec import RunSpec
from roles.terms import FIRST_TERM
from roles.trainer.asking import Asking
from roles.trainer.closing import ClosedBatch, close_batch
from roles.trainer.errors import DiskFailed, StateForked, StateMissing
from roles.trainer.heads import HeadBoard
from roles.trainer.journal import Journal
from roles.trainer.lifecycle import Lifecycle, TrainerState
from roles.trainer.pool import Pool
from roles.trainer.publication import Publication
from roles.trainer.stepping import Learner, Stepper
from roles.trusted import TrustedState

log = structlog.get_logger()

IDLE_SECONDS = 0.5
LINGER_SECONDS = 60.0


class Trainer:
    """The leading trainer of one run. `base` holds the base model's files, `state` is its own folder."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        trusted: TrustedState,
        observer: Observer,
        voice: Voice,
        ledger: Ledger,
        relays: Relays,
        learner: Learner,
        key: NodeKey,
        base: Path,
        state: Path,
        compute: ComputeThread,
        clock: Clock,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self._spec, self._trusted, self._observer = spec, trusted, observer
        self._ledger, self._key, self._base, self._clock = ledger, key, base, clock
        self._compute, self._linger = compute, linger
        self._watch = observer.watch()
        self._journal = Journal(state)
        self._heads = HeadBoard(term=FIRST_TERM, trusted=trusted, observer=observer, voice=voice, journal=self._journal)
        self._stepper = Stepper(spec, term=FIRST_TERM, learner=learner, key=key, journal=self._journal, clock=clock)
        self._pool = Pool(spec=spec, trusted=trusted, observer=observer, relays=relays, vocabulary=_vocabulary_of(base))
        self._publication = Publication(
            term=FIRST_TERM,
            trusted=trusted,
            voice=voice,
            ledger=ledger,
            relays=relays,
            journal=self._journal,
            heads=self._heads,
            clock=clock,
        )
        self._asking = Asking(spec, trusted=trusted, pool=self._pool, heads=self._heads, clock=clock)
        self._lifecycle = Lifecycle()
        self._said = ""
        self._heard, self._heard_at = (0, 0, 0), 0  # what was handed in when last looked at, and when that changed

    @property
    def state(self) -> TrainerState:
        """Where in its life-cycle the trainer is."""
        return self._lifecycle.state

    async def run(self) -> None:
        """Train until the run has ended. Raises NodeError with a sentence for the operator when it cannot go on."""
        fault: NodeError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                await self._await_ledger()
                await self._restore()
                beside = [group.create_task(self._pool.run()), group.create_task(self._publication.run())]
                await self._train()
                await self._end()
                for task in beside:
                    task.cancel()
        except* NodeError as errors:
            fault = _first(errors)
        except* OSError as failures:
            fault = DiskFailed(f"the trainer's folder cannot be used: {first_of(failures)}")
        if fault is not None:
            raise fault

    # -- start ---------------------------------------------------------------------------------------------------

    async def _await_ledger(self) -> None:
        """Nothing is said before the ledger was heard: it knows what was committed, and who leads."""
        while self._trusted.view is None:
            await self._wait(f"the ledger does not answer: {self._observer.ledger_down or 'not asked yet'}")
        while self._trusted.leader() != self._key.node:
            await self._wait("another trainer leads this run")

    async def _restore(self) -> None:
        """Compare disk and ledger, then go on: checkpoints not committed yet are sent again as they are."""
        made = await self._compute.run(self._stepper.restore)
        commits = self._trusted.view.commits if self._trusted.view else {}
        if commits and max(commits) > made:
            # CKPT-03: never begin anew over a live run
            raise StateMissing(
                f"the ledger holds checkpoint {max(commits)} of this run, this trainer's folder only"
                f" {'none' if made < 0 else made}; restore the folder"
            )
        if made < 0:
            await self._compute.run(self._stepper.prepare_base, self._base)
        for step in range(max(0, made - self._spec.training.async_level - 1), max(0, made) + 1):
            self._resend(step)
        for batch in self._journal.batches():
            self._pool.mark_used(batch.groups, batch.step)
        await self._heads.restore()
        if made >= 0:
            log.info("trainer.resumed", checkpoint=made, committed=max(commits, default=-1))

    def _resend(self, step: int) -> None:
        row = self._journal.manifest(step)
        committed = self._trusted.committed(step)
        if row is None:
            return
        if committed is not None and committed != manifest_digest(row):
            raise StateForked(f"the ledger holds another checkpoint {step} than this trainer's folder")
        if committed is None:
            self._publication.publish(step, final=self._is_last(step))

    def _is_last(self, step: int) -> bool:
        batch = self._journal.batch(step)
        return batch is not None and batch.is_last(self._spec.training)

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
        """Say that this step is collected, unless that was said before a restart."""
        newest = self._trusted.newest_commit()
        if newest is None or (self._heads.head is not None and self._heads.head.step >= step):
            return
        demand = self._asking.first(step)
        opened = OpenStep(step=step, limit=demand.limit, share=demand.share)
        await self._heads.open(opened, newest=newest, state="saturated" if rounds else "collecting")
        self._trusted.forget_before(step - self._spec.training.async_level - 1)
        self._pool.forget_before(step)
        log.info("step.opened", step=step, policy_step=newest.step, limit=opened.limit)

    async def _batch(self, step: int) -> ClosedBatch:
        """The step's batch: the one closed before a restart, or a new one, on disk before anything follows from it."""
        kept = self._journal.batch(step)
        if kept is not None:
            self._lifecycle.on("batch full")
            return kept
        began = self._clock()
        batch = await self._collect(step)
        await asyncio.to_thread(self._journal.save_batch, batch)
        self._pool.mark_used(batch.groups, step)
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
            await self._asking.for_more(step)
            await self._watch.changed(IDLE_SECONDS)

    async def _gate(self, batch: ClosedBatch) -> None:
        """Wait until few enough checkpoints are under way; the head says so meanwhile."""
        needed = max(0, batch.step - self._spec.training.async_level)
        began = self._clock()
        if self._trusted.committed(needed) is None:
            if self._heads.head is not None and self._heads.head.step == batch.step:  # not so after some restarts
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
        """Wait for the final commit, say that the run has ended, and stay while the rest is tallied."""
        last = self._stepper.made
        await self._committed(last)
        await self._heads.set_state("ended")
        self._lifecycle.on("last")
        log.info("run.ended", step=last, manifest=self._trusted.committed(last) or ZERO_DIGEST)
        try:
            async with asyncio.timeout(self._linger):
                while not await self._is_tallied(last):
                    await self._watch.changed(IDLE_SECONDS)
        except TimeoutError:
            return

    async def _is_tallied(self, last: int) -> bool:
        commit = self._trusted.view.commits.get(last) if self._trusted.view else None
        try:
            roots = await self._ledger.final_roots()
        except LedgerError:
            return False
        return commit is not None and any(root.closing_block >= commit.block for root in roots)

    async def _wait(self, why: str) -> None:
        if why != self._said:
            log.info("trainer.waiting", why=why)
        self._said = why
        await self._watch.changed(IDLE_SECONDS)


def _vocabulary_of(base: Path) -> int:
    """Number of token ids of the base model. Raises StateMissing."""
    try:
        return int(json.loads((base / "config.json").read_bytes())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateMissing(f"{base / 'config.json'} does not tell the model's vocabulary") from error


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _first(errors: BaseExceptionGroup[NodeError]) -> NodeError:
    error = first_of(errors)
    return error if isinstance(error, NodeError) else NodeError(str(error))
