"""A relay's disk: the catalogue says which shards are wanted, the store holds them, old checkpoints are evicted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from dht.disk import make_folder
from dht.identity import NodeId
from roles.shardcast.blobs import BlobWriter
from roles.shardcast.catalogue import KEPT, Catalogue, Parcel
from roles.shardcast.errors import StoreFull
from roles.shardcast.store import RETENTION, BlobStore

log = structlog.get_logger("shardcast")

LEAST_KEPT = 2
"""Minimum number of checkpoints kept, however little space: the newest, and the one being fetched when it came."""


EVER = 10**12
"""More checkpoints, and seconds, than any run has."""


class Shelf:
    """Catalogue and store under one disk budget. `keeps_all`: an archive, which refuses what no longer fits."""

    def __init__(
        self,
        root: Path,
        *,
        run: str,
        trainers: Collection[NodeId],
        max_disk: int,
        kept: int = KEPT,
        retention: float = RETENTION,
        keeps_all: bool = False,
        free_space: Callable[[Path], int] | None = None,
    ) -> None:
        make_folder(root)
        self._keeps_all = keeps_all
        if keeps_all:
            kept, retention = EVER, float(EVER)
        self.catalogue = Catalogue(root, run=run, trainers=trainers, kept=kept)
        self.store = BlobStore(
            root, max_disk=max_disk, retention=retention, is_wanted=self.catalogue.lists, free_space=free_space
        )
        self.store.pin(run)
        self._whole = set[str]()  # known to be complete, while the store's losses equal `_losses`
        self._losses = 0
        self._counted, self._holdings = ("", 0, 0), 0  # cache: checkpoint and state of the store; its shards

    async def add(self, kept: Parcel) -> None:
        """Keep a manifest or a delta's row. The oldest is dropped, with the shards that only it
        listed. Raises StoreFull."""
        if kept.layout.total > self.store.max_disk:
            raise StoreFull(f"a checkpoint or delta of {kept.layout.total} bytes is larger than the disk budget")
        self._discard(await self.catalogue.add(kept))

    def begin(self, digest: str, size: int, *, is_shard: bool) -> BlobWriter:
        """Open a writer. For a shard, older checkpoints are dropped if necessary. Raises StoreFull.

        Shards are not synced one by one: others hold them, and one that a power cut damaged is pulled again.
        """
        while True:
            try:
                return self.store.begin(digest, size, is_durable=not is_shard)
            except StoreFull:
                if not is_shard or not self._drop_oldest(digest):
                    raise

    def missing(self, kept: Parcel) -> list[int]:
        """Indices of the shards not here. Complete checkpoints are not counted again, as an archive keeps thousands."""
        if self._losses != self.store.losses:
            self._whole, self._losses = set(), self.store.losses
        if kept.digest in self._whole:
            return []
        missing = [index for index, shard in enumerate(kept.layout.manifest.shards) if shard not in self.store]
        if not missing:
            self._whole.add(kept.digest)
        return missing

    def held(self, kept: Parcel) -> int:
        """Number of shards here."""
        return len(kept.layout.manifest.shards) - len(self.missing(kept))

    def holdings(self, kept: Parcel) -> int:
        """Which shards are here: bit i is shard i. Cached until the next change."""
        state = (kept.digest, self.store.arrivals, self.store.losses)
        if self._counted != state:
            bits = "".join("1" if shard in self.store else "0" for shard in reversed(kept.layout.manifest.shards))
            self._counted, self._holdings = state, int(bits, 2)
        return self._holdings

    def _drop_oldest(self, wanted: str) -> bool:
        if self._keeps_all:
            return False
        checkpoints = list(self.catalogue)
        if len(checkpoints) <= LEAST_KEPT or wanted in checkpoints[-1].manifest.shards:
            return False
        oldest = checkpoints[-1]
        log.info("checkpoint.dropped", step=oldest.manifest.step, manifest=oldest.digest)
        self._discard(self.catalogue.drop(oldest.digest))
        return True

    def _discard(self, orphans: list[str]) -> None:
        for shard in orphans:
            self.store.discard(shard)
