"""One trainer of a run: it leads while the ledger's lease is its own, and otherwise stands by for the leader."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from dht.errors import NodeError
from dht.identity import NodeKey
from roles.context import RunContext
from roles.lifecycle import Lifecycle, fault_of
from roles.ports import Ledger
from roles.trainer.errors import Fenced
from roles.trainer.leading import FOLLOWING, Leading
from roles.trainer.lifecycle import TRANSITIONS, TrainerState
from roles.trainer.stand_by import StandBy
from roles.trainer.stepping import STATE_EVERY, Learner

log = structlog.get_logger()

IDLE_SECONDS = 0.5
SEEN_SECONDS = 60.0
LINGER_SECONDS = 60.0


class Trainer:
    """`base` holds the base model's files, `state` is the trainer's own folder. It waits up to `linger` seconds for the
    last tally. With every `state_every`-th checkpoint the optimizer's state is sealed for the other trainers."""

    def __init__(
        self,
        context: RunContext,
        *,
        ledger: Ledger,
        learner: Learner,
        key: NodeKey,
        base: Path,
        state: Path,
        linger: float = LINGER_SECONDS,
        state_every: int = STATE_EVERY,
    ) -> None:
        self._trusted, self._observer, self._node = context.trusted, context.observer, context.node
        self._lifecycle = Lifecycle(TRANSITIONS, TrainerState.PREPARING, event="trainer.moved")
        self._leading = partial(
            Leading,
            context,
            lifecycle=self._lifecycle,
            ledger=ledger,
            learner=learner,
            key=key,
            base=base,
            state=state,
            linger=linger,
            state_every=state_every,
        )
        self._standing_by = partial(StandBy, context, ledger=ledger, following=state / FOLLOWING, linger=linger)
        self._said = ""

    @property
    def state(self) -> TrainerState:
        """The trainer's state in its life-cycle."""
        return self._lifecycle.state

    async def run(self) -> None:
        """Lead and stand by until the run is over. Raises NodeError with a message for the
        operator when it cannot go on."""
        fault: NodeError | None = None
        try:
            await self._await_ledger()
            while not await self._take_a_turn():
                pass
        except* (NodeError, OSError) as errors:
            fault = fault_of(errors, "trainer")
        if fault is not None:
            raise fault

    async def _await_ledger(self) -> None:
        """Wait for the first view of the ledger, which shows what was committed and who leads."""
        watch = self._observer.watch()
        while self._trusted.view is None:
            why = f"the ledger does not answer: {self._observer.ledger_down or 'not asked yet'}"
            if why != self._said:
                log.info("trainer.waiting", why=why)
            self._said = why
            await watch.changed(IDLE_SECONDS)

    async def _take_a_turn(self) -> bool:
        """Lead or stand by until that changes. Returns whether the run is over."""
        if self._trusted.leader() != self._node:
            return not await self._stand_by()
        term = self._trusted.term
        try:
            await self._leading(term=term).run()
        except Fenced as fenced:
            log.warning("trainer.fenced", why=str(fenced))
            self._lifecycle.on("fenced")
            await self._until_seen(term)
            return False
        return True

    async def _until_seen(self, term: int) -> None:
        """Wait until our view shows the new leader because of whom the ledger refused us."""
        watch = self._observer.watch()
        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS):
                while (self._trusted.term, self._trusted.leader()) == (term, self._node):
                    await watch.changed(IDLE_SECONDS)

    async def _stand_by(self) -> bool:
        """Follow the leader until we become it. Returns False when the run is over instead."""
        self._lifecycle.on("another leads")
        leads = await self._standing_by().run()
        self._lifecycle.on("took over" if leads else "run over")
        return leads
