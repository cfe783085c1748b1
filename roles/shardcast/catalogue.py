"""The checkpoints a relay keeps: the newest few manifests of each trainer, on disk, and which shards they list.

Each trainer has its own few, so that one with a runaway term cannot push another's out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import PeerError
from dht.identity import NodeId
from roles.messages import CheckpointManifest
from roles.shardcast.disk import write_durably
from roles.shardcast.errors import StaleCheckpoint
from roles.shardcast.manifest import MAX_MANIFEST_BYTES, check_manifest, manifest_digest
from roles.shardcast.shards import Layout

log = structlog.get_logger("shardcast")

KEPT = 5


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A manifest kept, as it was signed."""

    digest: str
    signer: NodeId
    layout: Layout
    data: bytes

    @property
    def manifest(self) -> CheckpointManifest:
        """The manifest itself."""
        return self.layout.manifest

    @property
    def age_rank(self) -> tuple[int, int, str]:
        """Newest is greatest: term, then step; the digest makes it total."""
        return (self.manifest.term, self.manifest.step, self.digest)


class Catalogue:
    """Manifests by digest. Read from disk at start; a file that does not hold a right one is set aside (CKPT-04)."""

    def __init__(self, root: Path, *, run: str, trainers: Collection[NodeId], kept: int = KEPT) -> None:
        self._folder, self._run, self._trainers, self._kept = root / "manifests", run, frozenset(trainers), kept
        self._folder.mkdir(parents=True, exist_ok=True)
        self._checkpoints: dict[str, KeptCheckpoint] = {}
        self._listed: dict[str, tuple[int, int]] = {}  # shard -> its size, and how many checkpoints list it
        for path in sorted(self._folder.iterdir()):
            if not path.name.startswith("."):
                self._read(path)

    def __contains__(self, digest: object) -> bool:
        return digest in self._checkpoints

    def __iter__(self) -> Iterator[KeptCheckpoint]:
        """Newest first."""
        return iter(sorted(self._checkpoints.values(), key=lambda kept: kept.age_rank, reverse=True))

    def __len__(self) -> int:
        return len(self._checkpoints)

    def find(self, digest: str) -> KeptCheckpoint | None:
        """The checkpoint of a manifest digest."""
        return self._checkpoints.get(digest)

    def shard_size(self, digest: str) -> int | None:
        """Bytes of a shard some kept checkpoint lists, else None."""
        listed = self._listed.get(digest)
        return listed[0] if listed else None

    def lists(self, digest: str) -> bool:
        """Whether some kept checkpoint lists the shard."""
        return digest in self._listed

    def check(self, envelope: Envelope) -> KeptCheckpoint:
        """Judge an envelope; nothing is kept yet. Raises PeerError, or StaleCheckpoint for one older than those kept."""
        manifest = check_manifest(envelope, run=self._run, trainers=self._trainers)
        kept = KeptCheckpoint(manifest_digest(envelope), envelope.signer, Layout(manifest), to_bytes(envelope))
        mine = self._of(kept.signer)
        if kept.digest not in self and len(mine) >= self._kept and kept.age_rank < mine[-1].age_rank:
            raise StaleCheckpoint(f"step {manifest.step} of term {manifest.term} is older than the {self._kept} kept")
        return kept

    async def add(self, kept: KeptCheckpoint) -> list[str]:
        """Keep a checked checkpoint, on disk first. Gives the shards nothing lists any more. Raises OSError."""
        if kept.digest in self:
            return []
        await asyncio.to_thread(write_durably, self._folder / kept.digest, kept.data)
        if kept.digest not in self:  # the same one may have come twice at once
            self._enter(kept)
        orphans: list[str] = []
        for old in self._of(kept.signer)[self._kept :]:
            orphans += self.drop(old.digest)
        return orphans

    def drop(self, digest: str) -> list[str]:
        """Forget a checkpoint. Gives the shards nothing lists any more."""
        old = self._checkpoints.pop(digest, None)
        if old is None:
            return []
        (self._folder / digest).unlink(missing_ok=True)
        orphans: list[str] = []
        for shard in set(old.manifest.shards):
            size, count = self._listed[shard]
            if count > 1:
                self._listed[shard] = (size, count - 1)
            else:
                del self._listed[shard]
                orphans.append(shard)
        return orphans

    def _of(self, signer: NodeId) -> list[KeptCheckpoint]:
        return [kept for kept in self if kept.signer == signer]

    def _enter(self, kept: KeptCheckpoint) -> None:
        self._checkpoints[kept.digest] = kept
        sizes = {shard: kept.layout.size(index) for index, shard in enumerate(kept.manifest.shards)}
        for shard, size in sizes.items():  # each once, however often the manifest repeats it
            self._listed[shard] = (size, self._listed.get(shard, (size, 0))[1] + 1)

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                envelope = from_bytes(file.read(MAX_MANIFEST_BYTES + 1), limit=MAX_MANIFEST_BYTES)
            kept = self.check(envelope)
            if kept.digest != path.name:
                raise PeerError("file name and digest differ")
            self._enter(kept)
        except (PeerError, OSError) as error:
            log.warning("manifest.damaged", file=path.name, reason=str(error))
            os.replace(path, path.with_name(f".damaged-{path.name[:64]}"))
