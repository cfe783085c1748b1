"""Uploads the sealed trainer state to the relays, concurrently with everything else: no commit ever waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from dht.errors import NodeError
from roles.messages import StateRef
from roles.ports import Relays
from roles.trainer.journal import Journal, manifest_in
from roles.trainer.sealed_state import read_index

log = structlog.get_logger()

PIECE_TIMEOUT = 120.0
RETRY_SECONDS = 5.0
TRIES = 60
"""Tries per piece; when relays still refuse it, the upload is left to the next state."""


class StateUploads:
    """`offer` reports a committed checkpoint; `run` uploads the state that its manifest names, the index last."""

    def __init__(self, *, run: str, relays: Relays, journal: Journal) -> None:
        self._run, self._relays, self._journal = run, relays, journal
        self._due = asyncio.Event()
        self._committed = -1
        self._sent: StateRef | None = None

    def offer(self, step: int) -> None:
        """Report that checkpoint `step` is committed."""
        self._committed = step
        self._due.set()

    async def run(self) -> None:
        """Upload until cancelled. After a restart the newest state is offered again; relays take
        only the pieces they lack."""
        while True:
            await self._due.wait()
            self._due.clear()
            ref = await asyncio.to_thread(self._find)
            if ref is None:
                continue
            try:
                relays = await self._upload(ref)
            except (NodeError, TimeoutError, OSError) as error:
                log.warning("state.unpublished", step=ref.step, why=str(error) or "no relay answers in time")
                continue
            self._sent = ref
            await asyncio.to_thread(self._journal.forget_sealed_before, ref.step)
            log.info("state.published", step=ref.step, relays=relays)

    def _find(self) -> StateRef | None:
        """The state to upload now; None if it is uploaded already or another leader made it."""
        row = self._journal.manifest(self._committed)
        ref = manifest_in(row).state if row is not None else None
        if ref is None or ref == self._sent or not (self._journal.sealed(ref.step) / ref.index).is_file():
            return None
        return ref

    async def _upload(self, ref: StateRef) -> int:
        folder = self._journal.sealed(ref.step)
        data = await asyncio.to_thread((folder / ref.index).read_bytes)
        for digest in read_index(data, run=self._run, step=ref.step).pieces:
            await self._put(folder / digest)
        return await self._put(folder / ref.index)

    async def _put(self, path: Path) -> int:
        data = await asyncio.to_thread(path.read_bytes)
        failures = 0
        while True:
            try:
                async with asyncio.timeout(PIECE_TIMEOUT):
                    return len(await self._relays.put(data))
            except (NodeError, TimeoutError):
                failures += 1
                if failures == TRIES:
                    raise
            await asyncio.sleep(RETRY_SECONDS)
