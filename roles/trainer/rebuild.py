"""Rebuilds a trainer's folder from the ledger and the relays, after a take-over or a lost disk.

The weights come from the last committed checkpoint. The optimizer comes from the newest sealed state that its manifest
names, at most a few steps older. Without one the optimizer starts fresh, which is logged.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from dht.envelope import Envelope, from_bytes
from dht.errors import NodeError
from dht.identity import NodeKey
from ledger.records import Commit
from roles.context import RunContext
from roles.messages import StateRef
from roles.rl.checkpoint import STATE_FILE, CheckpointError
from roles.shardcast.assembly import MANIFEST_FILE
from roles.shardcast.manifest import MAX_MANIFEST_BYTES
from roles.trainer.journal import Journal, manifest_in
from roles.trainer.sealed_state import MAX_PIECE, open_state, read_index
from roles.trainer.stepping import Learner

log = structlog.get_logger()

MANIFEST_TIMEOUT = 10.0
STATE_TIMEOUT = 3600.0


class Rebuild:
    """Rebuilds one run's folder. `following` holds fetched checkpoints (a stand-by has the newest there)."""

    def __init__(
        self, context: RunContext, *, journal: Journal, learner: Learner, key: NodeKey, following: Path
    ) -> None:
        self._spec, self._trusted, self._relays = context.spec, context.trusted, context.relays
        self._journal, self._learner, self._key = journal, learner, key
        self._compute, self._following = context.compute, following

    async def run(self, commit: Commit) -> None:
        """Put checkpoint `commit` and its optimizer into the folder. Raises TransportError
        while no relay delivers it."""
        folder = await self._relays.fetch_checkpoint(commit.manifest, self._following)
        rows = await self._fetch_rows(commit, folder)
        state = await self._fetch_state(rows)
        await self._compute.load(self._install, commit, folder, rows, state)
        log.info("trainer.rebuilt", step=commit.step, optimizer=f"of step {state[0].step}" if state else "fresh")

    async def _fetch_rows(self, commit: Commit, folder: Path) -> list[tuple[int, Envelope]]:
        """Manifests of the checkpoint and of the earlier ones whose groups must not be used again, newest first."""
        data = await asyncio.to_thread((folder / MANIFEST_FILE).read_bytes)
        rows = [(commit.step, from_bytes(data, limit=MAX_MANIFEST_BYTES))]
        oldest = max(0, commit.step - self._spec.training.async_level - 1)
        for step in range(commit.step - 1, oldest - 1, -1):
            digest = self._trusted.committed(step)
            try:
                async with asyncio.timeout(MANIFEST_TIMEOUT):
                    rows.append((step, await self._relays.fetch_manifest(digest or "")))
            except (NodeError, TimeoutError) as error:
                log.info("manifest.gone", step=step, why=str(error) or "no answer in time")
        return rows

    async def _fetch_state(self, rows: Sequence[tuple[int, Envelope]]) -> tuple[StateRef, Path] | None:
        """The newest state that can be fetched and opened, decrypted to a file."""
        refs = [manifest.state for manifest in (manifest_in(row) for _, row in rows) if manifest.state]
        for ref in sorted({ref.index: ref for ref in refs}.values(), key=lambda ref: -ref.step):
            try:
                async with asyncio.timeout(STATE_TIMEOUT):
                    return ref, await self._fetch_one(ref)
            except (NodeError, TimeoutError, OSError) as error:
                log.warning("state.unusable", step=ref.step, why=str(error) or "no answer in time")
        if rows[0][0] > 0:
            log.warning("optimizer.fresh", step=rows[0][0])
        return None

    async def _fetch_one(self, ref: StateRef) -> Path:
        data = await self._relays.get(ref.index, limit=ref.size)
        index = read_index(data, run=self._spec.run_id, step=ref.step)
        folder = self._following / f"state-{ref.step}"
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        for digest in index.pieces:
            piece = await self._relays.get(digest, limit=MAX_PIECE)
            await asyncio.to_thread((folder / digest).write_bytes, piece)
        pieces = ((folder / digest).read_bytes() for digest in index.pieces)
        target = folder / STATE_FILE
        await asyncio.to_thread(open_state, pieces, target, index=index, key=self._key)
        return folder

    def _install(
        self,
        commit: Commit,
        folder: Path,
        rows: Sequence[tuple[int, Envelope]],
        state: tuple[StateRef, Path] | None,
    ) -> None:
        """Write everything to disk, the learner's state last, because it alone marks the checkpoint as made here."""
        step, journal = commit.step, self._journal
        journal.forget_after(step)
        journal.adopt(step, folder)
        for number, row in rows:
            journal.save_manifest(number, row)
        ref = state[0] if state and self._load(state[1]) else None
        if ref is None or self._learner.last_step != step:  # otherwise the state's own fp32 weights are more precise
            self._learner.load_weights(folder, step=step, keep_moments=ref is not None)
        journal.save_state_ref(ref)
        self._learner.save_state(journal.learner)
        if state:
            shutil.rmtree(state[1], ignore_errors=True)

    def _load(self, folder: Path) -> bool:
        try:
            self._learner.load_state(folder)
        except CheckpointError as error:
            log.warning("optimizer.fresh", why=str(error))
            return False
        return True
