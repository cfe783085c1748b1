"""The committed checkpoints a validator judges with: fetched by digest, kept on disk, loaded one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import structlog

from dht.errors import NodeError
from ledger.records import Commit
from roles.compute import ComputeThread
from roles.inference.engine import Engine
from roles.ports import Relays
from roles.receipts import Receipts
from roles.shardcast.assembly import prune_checkpoints

log = structlog.get_logger()

FETCH_SECONDS = 600


class PolicyShelf:
    """Checkpoints by manifest digest. The engine holds one at a time, so submissions of one policy
    are best judged together."""

    def __init__(
        self, *, relays: Relays, folder: Path, engine: Engine, compute: ComputeThread, receipts: Receipts
    ) -> None:
        self._relays = relays
        self._receipts = receipts
        self._folder = folder
        self._engine = engine
        self._compute = compute
        self._paths: dict[str, Path] = {}
        self._fetching: set[str] = set()
        self._loaded = ""
        self._kept: frozenset[str] = frozenset()

    def has(self, manifest: str) -> bool:
        """Whether the checkpoint is on disk, every byte verified."""
        return manifest in self._paths

    def wants(self, manifest: str) -> bool:
        """Whether the checkpoint is neither on disk nor being fetched."""
        return manifest not in self._paths and manifest not in self._fetching

    def reserve(self, manifest: str) -> None:
        """Mark the checkpoint as being fetched."""
        self._fetching.add(manifest)

    async def fetch(self, commit: Commit) -> None:
        """Fetch a committed checkpoint. A failure is logged; the next turn tries again."""
        self._fetching.add(commit.manifest)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._paths[commit.manifest] = await self._relays.fetch_checkpoint(commit.manifest, self._folder)
            self._receipts.note(commit.step, commit.manifest)
        except (NodeError, TimeoutError) as error:
            log.warning("checkpoint.unavailable", step=commit.step, why=str(error) or "no answer in time")
            await asyncio.sleep(1)  # a relay may not have it yet
        finally:
            self._fetching.discard(commit.manifest)

    def load(self, manifest: str) -> None:
        """Load a checkpoint into the engine unless it is there. Blocking: for the compute
        thread. Raises BadCheckpoint."""
        if manifest == self._loaded:
            return
        self._loaded = ""
        self._compute.bounded(self._engine.load, self._paths[manifest])
        self._loaded = manifest
        log.info("checkpoint.loaded", manifest=manifest)

    async def keep_only(self, manifests: Collection[str]) -> None:
        """Delete all other checkpoints from disk, including those left by an earlier process."""
        wanted = frozenset(manifests)
        if wanted != self._kept:
            self._kept = wanted
            self._paths = {name: path for name, path in self._paths.items() if name in wanted}
            await asyncio.to_thread(prune_checkpoints, self._folder, keep=wanted | self._fetching)
