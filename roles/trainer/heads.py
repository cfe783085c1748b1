"""The trainer's head: written to disk before it is published, and admitted to our own trusted state at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from ledger.records import Commit
from roles.announce import Voice
from roles.messages import Head, OpenStep
from roles.observer import Observer
from roles.rules import Ignore
from roles.trainer.journal import Journal
from roles.trusted import TrustedState

State = Literal["collecting", "waiting", "saturated", "ended"]
MAX_OPEN = 16
"""Maximum number of open steps in a head."""


class HeadBoard:
    """Publishes the head of one term. Changes from several tasks are serialised."""

    def __init__(self, *, term: int, trusted: TrustedState, observer: Observer, voice: Voice, journal: Journal) -> None:
        self._term = term
        self._trusted, self._observer, self._voice, self._journal = trusted, observer, voice, journal
        self._lock = asyncio.Lock()
        self.head: Head | None = None

    @property
    def step(self) -> int:
        """The furthest step published in this term; 0 before any."""
        latest = self._latest()
        return latest.step if latest else 0

    def _latest(self) -> Head | None:
        """The latest head of this term. After a lost disk, our earlier head may turn up only after we have published a
        first one, which nobody then accepts."""
        said = (head for head in (self.head, self._trusted.head) if head and head.term == self._term)
        return max(said, key=lambda head: head.step, default=None)

    async def restore(self) -> None:
        """Publish the last head again, if there was one in this term."""
        stored = await asyncio.to_thread(self._journal.head)
        if stored is not None and stored.term == self._term:
            await self._say(lambda _: stored)

    def withdraw(self) -> None:
        """Stop publishing the head: another trainer leads."""
        if self.head is not None:
            self._voice.withdraw(self.head)

    async def open(self, opened: OpenStep, *, newest: Commit, state: State) -> None:
        """Move to a step. Earlier steps stay open while their submissions are in time.

        After a lost disk, the step may be one that this term has already passed. Nobody accepts a head that goes back,
        so the head then names the furthest step published, and the later steps stay open unchanged.
        """

        def change(_: Head | None) -> Head:
            # the previous leader may have opened steps that are still open
            before = self._latest() or self._trusted.head
            kept = before.open_steps if before else ()
            reach = opened.step - self._trusted.spec.training.async_level
            furthest = max(opened.step, self.step)
            steps = {item.step: item for item in kept if reach <= item.step <= furthest} | {opened.step: opened}
            open_steps = tuple(steps[step] for step in sorted(steps))[-MAX_OPEN:]
            return Head(
                term=self._term,
                step=furthest,
                policy_step=newest.step,
                manifest=newest.manifest,
                groups_wanted=self._trusted.spec.training.batch_groups,
                state=state,
                open_steps=open_steps,
            )

        await self._say(change)

    async def set_state(self, state: State) -> None:
        """Publish another state of the head."""
        await self._change(lambda head: head.model_copy(update={"state": state}))

    async def set_policy(self, commit: Commit) -> None:
        """Publish a newer committed checkpoint."""
        update = {"policy_step": commit.step, "manifest": commit.manifest}
        await self._change(lambda head: head if head.policy_step >= commit.step else head.model_copy(update=update))

    async def raise_limit(self, step: int, limit: int) -> None:
        """Publish a higher limit of an open step."""

        def raised(opened: OpenStep) -> OpenStep:
            return opened.model_copy(update={"limit": limit}) if opened.step == step else opened

        def change(head: Head) -> Head:
            return head.model_copy(update={"open_steps": tuple(raised(opened) for opened in head.open_steps)})

        await self._change(change)

    async def _change(self, change: Callable[[Head], Head]) -> None:
        await self._say(lambda head: change(self._latest() or head) if head is not None else None)

    async def _say(self, change: Callable[[Head | None], Head | None]) -> None:
        async with self._lock:
            head = change(self.head)
            if head is None or head == self.head:
                return
            await asyncio.to_thread(self._journal.save_head, head)
            self.head = head
            row = await self._voice.announce(head)
            with suppress(Ignore):  # our own observer may have read it back first
                self._trusted.admit_head(row)
            self._observer.wake()
