"""What is made and not yet said: uploads blobs, then announces rows, in order, beside the sampling of the next index."""

from __future__ import annotations

import asyncio

import structlog

from dht.errors import TransportError
from roles.announce import Voice
from roles.messages import Submission
from roles.observer import Observer
from roles.ports import Relays
from roles.trusted import TrustedState
from roles.worker.shelf import Kept, Shelf

log = structlog.get_logger()

ROOM = 2
"""Submissions that may wait for their upload before sampling pauses."""
UPLOAD_TIMEOUT = 300.0
ANNOUNCE_TIMEOUT = 60.0
KEEP_SECONDS = 3600
"""How long a row is published again: longer than a verdict and a tally take."""
RETRY_SECONDS = 1.0


class Outbox:
    """Sends what is put in. A blob that no relay takes is tried again until its step is too old to be judged."""

    def __init__(
        self, *, trusted: TrustedState, observer: Observer, voice: Voice, relays: Relays, shelf: Shelf
    ) -> None:
        self._trusted, self._observer, self._voice = trusted, observer, voice
        self._relays, self._shelf = relays, shelf
        self._queue: asyncio.Queue[Kept] = asyncio.Queue(ROOM)
        self._watch = observer.watch()

    async def put(self, item: Kept) -> None:
        """Hand over; waits while the box is full."""
        await self._queue.put(item)

    async def flushed(self) -> None:
        """Wait until all was sent or dropped."""
        await self._queue.join()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            item = await self._queue.get()
            try:
                await self._send(item)
            finally:
                self._queue.task_done()

    async def _send(self, item: Kept) -> None:
        submission = item.submission
        relays = item.relays if item.relays is not None else await self._upload(submission)
        if relays is None or self._is_late(submission):
            log.warning("submission.dropped", step=submission.step, index=submission.index, why="its step has closed")
            return
        if item.relays is None:
            await asyncio.to_thread(self._shelf.mark_uploaded, submission, relays)
        row = await self._voice.announce(submission, relays=relays, keep_seconds=KEEP_SECONDS)
        self._observer.offer([row])
        self._observer.wake()
        log.info(
            "submission.sent",
            step=submission.step,
            index=submission.index,
            policy_step=submission.policy_step,
            submission=item.digest,
            tokens=submission.tokens,
            relays=len(relays),
        )

    async def _upload(self, submission: Submission) -> tuple[str, ...] | None:
        blob = await asyncio.to_thread(self._shelf.blob, submission)
        said = False
        while not self._is_late(submission):
            try:
                async with asyncio.timeout(UPLOAD_TIMEOUT):
                    return await self._relays.put(blob)
            except (TransportError, TimeoutError) as error:
                if not said:
                    log.warning("blob.unsent", step=submission.step, index=submission.index, why=str(error))
                said = True
                await self._watch.changed(RETRY_SECONDS)
        return None

    def _is_late(self, submission: Submission) -> bool:
        head = self._trusted.head
        return head is not None and head.step > submission.step + self._trusted.spec.training.async_level
