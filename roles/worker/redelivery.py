"""Second deliveries: a blob that validators do not find is uploaded to other relays, which its new row names.

A relay may accept uploads and keep none, or return a blob only to its uploader, so the uploader cannot find out by
asking. The verdicts show it: they report the blob missing, or there are none.
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
"""Deliveries after the first. By then eight other relays have been tried, and the fault lies elsewhere."""
LOOK_AGAIN_SECONDS = 45.0
"""Time after a delivery before an earlier verdict counts against it: validators look for a missing blob at least every
30 s. Doubled with each delivery."""
SILENCE_SECONDS = 180.0
"""Time without any verdict before the relays are suspected; a validator may simply be slow.
Doubled with each delivery."""
TICK_SECONDS = 1.0


@dataclass(slots=True)
class _Sent:
    """One announced submission. `since`: its last delivery, by the monotonic clock."""

    submission: Submission
    digest: str
    relays: tuple[str, ...]
    since: float
    tries: int = 0
    tried: set[str] = field(default_factory=set)


class Redelivery:
    """Watches sent submissions until they have a final verdict."""

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
        """Watch a submission whose blob these relays accepted and whose row was announced."""
        self._sent[digest] = _Sent(submission, digest, relays, self._clock(), tried=set(relays))

    async def run(self) -> None:
        """Check for redeliveries until cancelled."""
        while True:
            await self._watch.changed(TICK_SECONDS)
            await self.turn()

    async def turn(self) -> None:
        """Redeliver whatever needs it now."""
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
        """The blob as it was signed. Raises TransportError when this disk no longer has it or it is damaged."""
        try:
            blob = await asyncio.to_thread(self._store.blob, item.submission)
        except OSError as error:
            raise TransportError(f"its blob cannot be read: {error}") from error
        if sha256(blob) != item.submission.blob:
            raise TransportError("its blob on this disk is damaged")
        return blob
