"""Second deliveries: a blob that validators do not find is uploaded to other relays, which its new row names.

A relay may take uploads and keep none, or give a blob back to its uploader only, whom a second look of his own then
deceives. What tells is the verdicts: they say that the blob is missing, or there are none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from dht.encoding import sha256
from dht.errors import TransportError
from roles.messages import Submission
from roles.observer import Observer
from roles.trusted import TrustedState
from roles.worker.courier import Courier
from roles.worker.reports import Reports
from roles.worker.submission_store import SubmissionStore

log = structlog.get_logger()

TRIES = 4
"""Deliveries after the first; by then eight other relays were asked, and the fault lies elsewhere."""
LOOK_AGAIN_SECONDS = 45.0
"""After a delivery, before a verdict of old is held against it: validators look for a missing blob every 30 s at least.
Doubled with each delivery."""
SILENCE_SECONDS = 180.0
"""Without any verdict, before the relays are suspected: a validator may simply be slow. Doubled with each delivery."""
TICK_SECONDS = 1.0


@dataclass(slots=True)
class _Sent:
    """One submission that was announced. `since`: its last delivery, by the monotonic clock."""

    submission: Submission
    digest: str
    relays: tuple[str, ...]
    since: float
    tries: int = 0
    tried: set[str] = field(default_factory=set)


class Redelivery:
    """Watches submissions that were sent until their verdict stands."""

    def __init__(
        self,
        *,
        trusted: TrustedState,
        observer: Observer,
        courier: Courier,
        reports: Reports,
        store: SubmissionStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trusted, self._courier, self._reports, self._store = trusted, courier, reports, store
        self._clock = clock
        self._sent: dict[str, _Sent] = {}
        self._watch = observer.watch()

    def note(self, submission: Submission, digest: str, relays: tuple[str, ...]) -> None:
        """Watch a submission whose blob these relays took and whose row was announced."""
        self._sent[digest] = _Sent(submission, digest, relays, self._clock(), tried=set(relays))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._watch.changed(TICK_SECONDS)
            await self.turn()

    async def turn(self) -> None:
        """Deliver again whatever needs it now."""
        self._sent = {digest: item for digest, item in self._sent.items() if self._reports.is_open(digest)}
        for item in list(self._sent.values()):
            why = self._need(item)
            if why is not None:
                await self._deliver(item, why)

    def _need(self, item: _Sent) -> str | None:
        if item.tries >= TRIES:
            return None
        waited = self._clock() - item.since
        if self._reports.misses(item.digest) and (item.tries == 0 or waited >= LOOK_AGAIN_SECONDS * 2**item.tries):
            return "validators do not find its blob"
        if waited >= SILENCE_SECONDS * 2**item.tries and not self._reports.is_heard(item.digest):
            return "no verdict yet"
        return None

    async def _deliver(self, item: _Sent, why: str) -> None:
        item.tries, item.since = item.tries + 1, self._clock()
        place = {"step": item.submission.step, "index": item.submission.index}
        if self._reports.misses(item.digest) >= self._trusted.quorum:
            self._courier.doubt(item.relays)
        try:
            relays = await self._courier.upload(item.submission, await self._blob(item), last=item.tried)
        except (TransportError, TimeoutError) as error:
            log.warning("blob.unsent", **place, why=str(error) or "no answer in time")
            return
        item.relays = relays
        item.tried.update(relays)
        await self._courier.announce(item.submission, relays)
        log.info("submission.sent_again", **place, submission=item.digest, relays=len(relays), why=why)

    async def _blob(self, item: _Sent) -> bytes:
        """The blob as it was signed. Raises TransportError when this disk no longer has it."""
        try:
            blob = await asyncio.to_thread(self._store.blob, item.submission)
        except OSError as error:
            raise TransportError(f"its blob cannot be read: {error}") from error
        if sha256(blob) != item.submission.blob:
            raise TransportError("its blob on this disk is damaged")
        return blob
