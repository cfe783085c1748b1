"""The worker's loop: find the next assigned index, sample it, hand it to the outbox.

Three things run concurrently: the next weights are fetched (`policies`), rollouts are sampled (here, in the compute
thread), and finished ones are uploaded and announced (`outbox`). The node registers the worker; here we only wait.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import structlog

from dht.encoding import ZERO_DIGEST
from dht.errors import NodeError
from roles.assignment import is_admitted, policy_window
from roles.context import RunContext
from roles.inference.engine import Engine
from roles.lifecycle import Lifecycle, fault_of
from roles.messages import Head, OpenStep
from roles.receipts import Receipts
from roles.tasks.task import Task
from roles.worker.courier import Courier
from roles.worker.errors import Ejected
from roles.worker.generation import Generator, HeldPolicy, Ticket
from roles.worker.lifecycle import TRANSITIONS, WorkerState
from roles.worker.outbox import Outbox
from roles.worker.policies import Policies
from roles.worker.redelivery import Redelivery
from roles.worker.reports import Reports
from roles.worker.submission_store import Kept, SubmissionStore

log = structlog.get_logger()

IDLE_SECONDS = 1.0
LATE_STEPS = 4
"""How many steps beyond the open ones verdicts are awaited for: a blob that had to be sent again takes longer."""
FLUSH_SECONDS = 20.0
"""How long, after the end of the run, pending uploads and then verdicts are awaited."""


class Worker:
    """One contributor in one run. `state` is its folder."""

    def __init__(self, context: RunContext, *, engine: Engine, task: Task, state: Path) -> None:
        spec, trusted, observer = context.spec, context.trusted, context.observer
        voice, relays = context.voice, context.relays
        self._spec, self._trusted, self._observer, self._node = spec, trusted, observer, context.node
        self._compute = context.compute
        self._watch = observer.watch()
        self._store = SubmissionStore(state)
        self._generator = Generator(spec, node=context.node, engine=engine, task=task)
        self._receipts = Receipts(relays=relays, voice=voice, folder=state / "receipts", run=spec.run_id)
        self._policies = Policies(
            trusted=trusted, observer=observer, relays=relays, folder=state / "weights", receipts=self._receipts
        )
        self._reports = Reports(trusted)
        courier = Courier(observer=observer, voice=voice, relays=relays, store=self._store)
        self._redelivery = Redelivery(
            trusted=trusted, observer=observer, courier=courier, reports=self._reports, store=self._store
        )
        self._outbox = Outbox(
            trusted=trusted, observer=observer, courier=courier, store=self._store, sent=self._redelivery.note
        )
        self._lifecycle = Lifecycle(TRANSITIONS, WorkerState.IDLE, event="worker.moved")
        self._own: dict[tuple[int, int], str] = {}  # (step, index) -> digest
        self._inherited: list[Kept] = []  # submitted with another key, perhaps an earlier one of ours
        self._unread: set[int] = set()  # steps that may hold our rows from before this process
        self._waiting_for = ""

    @property
    def state(self) -> WorkerState:
        """The worker's state in its life-cycle."""
        return self._lifecycle.state

    @property
    def policy_step(self) -> int:
        """The checkpoint in use; 0 before the first."""
        return self._generator.loaded.step if self._generator.loaded else 0

    async def run(self) -> None:
        """Work until the run has ended. Raises DiskFailed, Ejected, or an error that stops the engine from sampling;
        everything else is waited out."""
        fault: NodeError | None = None
        try:
            await self._run()
        except* (Ejected, OSError) as errors:
            fault = fault_of(errors, "worker")
        if fault is not None:
            raise fault

    async def _run(self) -> None:
        kept = await asyncio.to_thread(self._store.load)
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._policies.run()), group.create_task(self._outbox.run())]
            beside += [group.create_task(self._redelivery.run()), group.create_task(self._report())]
            beside.append(group.create_task(self._receipts.run()))
            await self._await_head()
            await self._resume(kept)
            await self._work()
            await self._wind_up()
            for task in beside:
                task.cancel()

    # -- start and end -------------------------------------------------------------------------------------------

    async def _await_head(self) -> None:
        while self._trusted.head is None:
            await self._wait(self._why_no_head())
        head = self._trusted.head
        # Any step open now may hold rows of ours that a lost disk no longer records.
        self._unread = set(range(max(1, head.step - self._spec.training.async_level), head.step + 1))

    def _why_no_head(self) -> str:
        if self._observer.ledger_down is not None:
            return f"the ledger does not answer: {self._observer.ledger_down}"
        if self._observer.directory_down is not None:
            return f"no peer answers: {self._observer.directory_down}"
        return "the trainer has not said which step it collects"

    async def _resume(self, kept: list[Kept]) -> None:
        """Announce the submissions made before a restart again. None is made a second time."""
        for item in kept:
            submission = item.submission
            if submission.run != self._spec.run_id:
                continue
            if submission.node != self._node:
                self._inherited.append(item)
                continue
            self._own[(submission.step, submission.index)] = item.digest
            if submission.step >= self._oldest_open():
                self._reports.expect(item.digest, submission)
                await self._outbox.put(item)
        if kept:
            log.info("worker.resumed", submissions=len(kept), newest_step=kept[-1].submission.step)

    async def _wind_up(self) -> None:
        """After the end of the run, let uploads finish and wait a limited time for the last verdicts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._outbox.flushed()
                while self._reports.open:
                    self._reports.tell()
                    await self._watch.changed(IDLE_SECONDS)
        self._reports.tell(at_last=True)
        log.info("worker.ended")

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (head := self._trusted.head) is not None and not self._is_over(head):
            self._check_standing()
            ticket = self._next_ticket(head)
            if isinstance(ticket, str):
                await self._wait(ticket)
            elif await self._has_policy_for(ticket.step):
                await self._sample(ticket)

    def _is_over(self, head: Head) -> bool:
        """Whether the run is over, by the head or the ledger: a leader may die between its last
        commit and its last head."""
        newest = self._trusted.newest_commit()
        return head.state == "ended" or (newest is not None and newest.final)

    def _check_standing(self) -> None:
        """Raises Ejected when a strike against this node is in force: its submissions are no longer judged."""
        if self._trusted.is_ejected(self._node):
            raise Ejected(
                f"the validators have struck this node ({self._node}) out of the run for work at fault: what it hands in is "
                "refused. What is held against it stands on the ledger (intellect-node strike list); its wallet can dispute "
                "it, and once the strike is lifted this node may be started again"
            )

    async def _wait(self, why: str) -> None:
        if why != self._waiting_for:
            log.info("worker.waiting", why=why)
        self._waiting_for = why
        await self._watch.changed(IDLE_SECONDS)

    def _next_ticket(self, head: Head) -> Ticket | str:
        """The first admitted index of the head's step that we have not submitted, or why there is none."""
        opened = self._trusted.opened.get(head.step)
        if opened is None:
            return f"step {head.step} is not open"
        if head.step in self._unread and head.step not in self._observer.steps_read:
            return "own rows of this step are being read"
        self._unread.discard(head.step)
        if self._trusted.view is None or self._node not in self._trusted.view.registrations:
            return "the node is not registered on the ledger yet"
        self._inherit(head.step)
        return self._first_free(opened)

    def _inherit(self, step: int) -> None:
        """Count what an earlier key of this node submitted for a step as ours, if its row can be
        read, and continue after it."""
        for item in [item for item in self._inherited if item.submission.step == step]:
            self._inherited.remove(item)
            if self._trusted.root_of(item.submission.node) == self._trusted.root_of(self._node):
                self._trusted.name(item.digest, node=self._node, step=step)
                self._observer.offer(())  # offers the pending rows again

    def _first_free(self, opened: OpenStep) -> Ticket | str:
        predecessor = ZERO_DIGEST
        for index in range(opened.limit):
            seed = self._trusted.seed_of(self._node, opened.step, index)
            if seed is None:
                return "the block that fixes the assignment is not there yet"
            if not is_admitted(seed, opened.share):
                continue
            digest = self._own_digest(opened.step, index)
            if digest is None:
                return Ticket(opened.step, index, seed, predecessor)
            predecessor = digest
        return f"all {opened.limit} indices of step {opened.step} are done"

    def _own_digest(self, step: int, index: int) -> str | None:
        """Digest of our submission for an index, from our disk or else from rows of ours that others hold."""
        if (step, index) in self._own:
            return self._own[(step, index)]
        seen = self._trusted.known_digests(self._node, step, index)
        return seen[0] if seen else None

    async def _sample(self, ticket: Ticket) -> None:
        self._waiting_for = ""
        self._lifecycle.on("assigned")
        began = time.monotonic()
        made = await self._compute.run(self._generator.make, ticket)
        self._lifecycle.on("group")
        submission = made.submission
        await asyncio.to_thread(self._store.save, made)
        self._own[(ticket.step, ticket.index)] = made.digest
        self._reports.expect(made.digest, submission)
        log.info(
            "submission.made",
            step=ticket.step,
            index=ticket.index,
            policy_step=submission.policy_step,
            tokens=submission.tokens,
            reward=round(made.reward, 4),
            seconds=round(time.monotonic() - began, 3),
        )
        await self._outbox.put(Kept(submission, made.digest, None))
        self._lifecycle.on("announced")

    # -- weights -------------------------------------------------------------------------------------------------

    async def _has_policy_for(self, step: int) -> bool:
        """Switch to the newest usable weights, between submissions. Waits and returns False when none may be used."""
        window = policy_window(step, self._spec.training.async_level)
        newest = self._policies.newest
        if newest is not None and newest != self._generator.loaded and newest.step in window:
            await self._load(newest)
        loaded = self._generator.loaded
        if loaded is not None and loaded.step in window:
            return True
        self._lifecycle.on("manifest")
        await self._wait(f"weights of checkpoint {window[0]} to {window[-1]} are being fetched")
        self._lifecycle.on("weights")
        return False

    async def _load(self, policy: HeldPolicy) -> None:
        try:
            await self._compute.load(self._generator.load, policy)
        except NodeError as error:
            log.warning("weights.refused", policy_step=policy.step, why=str(error))
            self._policies.bad.add(policy.manifest)
            self._policies.newest = self._generator.loaded
            return
        log.info("weights.loaded", policy_step=policy.step)
        await asyncio.to_thread(self._policies.prune, policy)

    # -- verdicts and tidying ------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Log the outcome of each submission, and drop those that are too old to be judged."""
        watch = self._observer.watch()
        while True:
            await watch.changed()
            self._reports.tell()
            await self._forget()

    def _oldest_open(self) -> int:
        head = self._trusted.head
        return max(1, head.step - self._spec.training.async_level) if head else 1

    def _patience(self) -> int:
        head = self._trusted.head
        return LATE_STEPS if head is not None and head.state != "ended" else 0

    async def _forget(self) -> None:
        oldest = self._oldest_open()
        self._reports.forget_before(oldest - 1 - self._patience())
        unjudged = self._reports.steps()
        self._observer.extra_steps = set(unjudged)  # keep reading their verdicts
        self._trusted.forget_before(min({oldest - 1, *unjudged}))
        # Blobs are kept until their epoch has surely been tallied; relays hold them meanwhile too.
        before = oldest - 1 - self._spec.epoch.checkpoints
        if gone := [place for place in self._own if place[0] < before]:
            for place in gone:
                del self._own[place]
            await asyncio.to_thread(self._store.prune, before)
