"""Delivers a submission, for the first time or again: its blob to relays, then its row, which names those relays."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable

from roles.announce import Voice
from roles.messages import Submission
from roles.observer import Observer
from roles.ports import Relays
from roles.worker.submission_store import SubmissionStore

UPLOAD_TIMEOUT = 300.0
KEEP_SECONDS = 3600
"""How long a row is republished: longer than verdicts and a tally take."""
MAX_DOUBTED = 256


class Courier:
    """Tracks doubted relays: validators did not find blobs that were left there, so they
    are asked last from then on."""

    def __init__(self, *, observer: Observer, voice: Voice, relays: Relays, store: SubmissionStore) -> None:
        self._observer, self._voice, self._relays, self._store = observer, voice, relays, store
        self._doubted: OrderedDict[str, None] = OrderedDict()

    def doubt(self, relays: Iterable[str]) -> None:
        """Ask these relays last from now on."""
        for relay in relays:
            self._doubted[relay] = None
        while len(self._doubted) > MAX_DOUBTED:
            self._doubted.popitem(last=False)

    async def upload(self, submission: Submission, blob: bytes, *, last: Collection[str] = ()) -> tuple[str, ...]:
        """Upload the blob and record on disk the relays that took it, which are returned. Relays in `last` are asked
        last. Raises TransportError, TimeoutError, OSError."""
        async with asyncio.timeout(UPLOAD_TIMEOUT):
            relays = await self._relays.put(blob, last={*last, *self._doubted})
        await asyncio.to_thread(self._store.mark_uploaded, submission, relays)
        return relays

    async def announce(self, submission: Submission, relays: tuple[str, ...]) -> None:
        """Publish the row, naming these relays as holders of its blob."""
        row = await self._voice.announce(submission, relays=relays, keep_seconds=KEEP_SECONDS)
        self._observer.offer([row])
        self._observer.wake()
