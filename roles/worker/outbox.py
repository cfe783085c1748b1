"""Outgoing submissions: uploads blobs and announces rows, in order, while the next index is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from dht.errors import TransportError
from roles.messages import Submission
from roles.observer import Observer
from roles.trusted import TrustedState
from roles.worker.courier import Courier
from roles.worker.submission_store import Kept, SubmissionStore

log = structlog.get_logger()

ROOM = 2
"""Submissions that may wait for their upload before sampling pauses."""
RETRY_SECONDS = 1.0


class Outbox:
    """Sends queued submissions and reports each to `sent`. A blob that no relay takes is retried until its
    step is too old to be judged."""

    def __init__(
        self,
        *,
        trusted: TrustedState,
        observer: Observer,
        courier: Courier,
        store: SubmissionStore,
        sent: Callable[[Submission, str, tuple[str, ...]], None],
    ) -> None:
        self._trusted, self._courier, self._store, self._sent = trusted, courier, store, sent
        self._queue: asyncio.Queue[Kept] = asyncio.Queue(ROOM)
        self._watch = observer.watch()

    async def put(self, item: Kept) -> None:
        """Queue a submission; waits while the queue is full."""
        await self._queue.put(item)

    async def flushed(self) -> None:
        """Wait until everything queued has been sent or dropped."""
        await self._queue.join()

    async def run(self) -> None:
        """Send until cancelled."""
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
        await self._courier.announce(submission, relays)
        self._sent(submission, item.digest, relays)
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
        blob = await asyncio.to_thread(self._store.blob, submission)
        said = False
        while not self._is_late(submission):
            try:
                return await self._courier.upload(submission, blob)
            except (TransportError, TimeoutError) as error:
                if not said:
                    log.warning(
                        "blob.unsent",
                        step=submission.step,
                        index=submission.index,
                        why=str(error) or "no answer in time",
                    )
                said = True
                await self._watch.changed(RETRY_SECONDS)
        return None

    def _is_late(self, submission: Submission) -> bool:
        head = self._trusted.head
        return head is not None and head.step > submission.step + self._trusted.spec.training.async_level
