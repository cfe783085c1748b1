"""On an archiving relay: fetches from the other relays what an audit needs but nobody uploads.

That is tallies, the rollouts they credit, and the evidence of strikes, as named on the ledger; relays pull checkpoints
anyway. What is in the archive is never dropped (`roles.shardcast.shelf`).
"""

from __future__ import annotations

import asyncio

import structlog

from dht.errors import NodeError
from ledger.base import BaseLedger
from ledger.errors import LedgerError
from ledger.records import FinalRoot
from roles.evidence import MAX_EVIDENCE
from roles.ports import Relays
from roles.shardcast.store import BlobStore
from roles.spec import RunSpec
from roles.tally import MAX_BLOB, TallyRefused, open_final_tally
from roles.tally.items import submissions_of

log = structlog.get_logger()

PAUSE_SECONDS = 5.0
TRIES = 20
"""Attempts per blob before it is given up."""


class Archive:
    """Fetches what is missing until cancelled."""

    def __init__(self, spec: RunSpec, *, ledger: BaseLedger, relays: Relays, store: BlobStore) -> None:
        self._spec, self._ledger, self._relays, self._store = spec, ledger, relays, store
        self._wanted: dict[str, int] = {}  # digest -> maximum size
        self._tries: dict[str, int] = {}
        self._listed: set[str] = set()  # tallies whose contents have been listed

    async def run(self) -> None:
        """Check the ledger every few seconds."""
        while True:
            try:
                await self.turn()
            except (LedgerError, NodeError, OSError, TimeoutError) as error:
                log.warning("archive.delayed", why=str(error) or type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)

    async def turn(self) -> None:
        """Fetch what the ledger names and is missing here. Raises LedgerError, StoreFull, OSError."""
        for held in await self._ledger.strikes():
            self._want(held.strike.evidence, MAX_EVIDENCE)
        for root in await self._ledger.final_roots():
            if root.blob not in self._listed:
                await self._list(root)
        await self._fetch_wanted()

    async def _list(self, root: FinalRoot) -> None:
        blob = await self._fetch(root.blob, MAX_BLOB)
        if blob is None:
            return
        try:
            body = await asyncio.to_thread(open_final_tally, blob, root)
        except TallyRefused as error:  # kept anyway, because the validators' quorum signed it
            log.warning("archive.unreadable", epoch=root.epoch, why=str(error))
        else:
            items = (*body.items, *body.refusals)
            for submission in await asyncio.to_thread(submissions_of, items, self._spec):
                self._want(submission.blob, min(submission.size, self._spec.checks.max_blob))
        self._listed.add(root.blob)

    def _want(self, digest: str, limit: int) -> None:
        if digest not in self._store and self._tries.get(digest, 0) < TRIES:
            self._wanted[digest] = limit

    async def _fetch_wanted(self) -> None:
        before, missing = len(self._wanted), 0
        for digest, limit in list(self._wanted.items()):
            if digest in self._store or await self._fetch(digest, limit) is not None:
                del self._wanted[digest]
                continue
            missing += 1
            if self._tries[digest] >= TRIES:
                log.warning("archive.lost", blob=digest)
                del self._wanted[digest]
        if before > missing:
            log.info("archive.fetched", blobs=before - missing, missing=missing)

    async def _fetch(self, digest: str, limit: int) -> bytes | None:
        """Fetch a blob into the store; None when no relay has it now."""
        self._tries[digest] = self._tries.get(digest, 0) + 1
        reader = await self._store.open(digest)
        if reader is not None:
            try:
                return b"".join([block async for block in reader.blocks(0, reader.size)])
            finally:
                reader.close()
        try:
            data = await self._relays.get(digest, limit=limit)
        except (NodeError, TimeoutError):
            return None
        await self._store.put(data)
        return data
