"""The checkpoints a relay keeps: the newest few manifests and deltas of each trainer, on disk,
and the shards they list.

The limit is per trainer, so that one with a runaway term cannot evict another's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import structlog

from dht.disk import make_folder, write_durably
from dht.encoding import digest as digest_of
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import PeerError
from dht.identity import NodeId
from roles.messages import CheckpointDelta, CheckpointManifest
from roles.shardcast.chains import leading_on
from roles.shardcast.delta import WORTHWHILE_SHARE
from roles.shardcast.errors import StaleCheckpoint
from roles.shardcast.manifest import DELTA_KIND, MAX_MANIFEST_BYTES, check_delta, check_manifest, manifest_digest
from roles.shardcast.shards import Layout

log = structlog.get_logger("shardcast")

KEPT = 5
KEPT_DELTAS = 16
"""Maximum deltas per signer. Beyond as many as checkpoints, deltas are kept only while all together are shorter than
the shards, because a longer chain is of no use."""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A stored manifest, as it was signed."""

    digest: str
    signer: NodeId
    manifest: CheckpointManifest
    layout: Layout
    data: bytes

    @property
    def age_rank(self) -> tuple[int, int, str]:
        """The newest is greatest: ordered by term, then step; the digest makes the order total."""
        return (self.manifest.term, self.manifest.step, self.digest)


@dataclass(frozen=True, slots=True)
class KeptDelta:
    """A stored row of a delta, as it was signed."""

    digest: str
    signer: NodeId
    delta: CheckpointDelta
    layout: Layout
    data: bytes

    @property
    def age_rank(self) -> tuple[int, int, str]:
        """As for a checkpoint, by its target."""
        return (self.delta.term, self.delta.step, self.digest)

    @property
    def base(self) -> str:
        """Manifest digest of the checkpoint it needs."""
        return self.delta.base

    @property
    def target(self) -> str:
        """Manifest digest of the checkpoint it makes."""
        return self.delta.target

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return self.delta.size


Parcel = KeptCheckpoint | KeptDelta
"""Anything stored as a signed row and shards."""


class Catalogue:
    """Manifests by digest. They are read from disk at start; a file without a valid one is set aside (CKPT-04)."""

    def __init__(self, root: Path, *, run: str, trainers: Collection[NodeId], kept: int = KEPT) -> None:
        self._folder, self._run, self._trainers, self._kept = root / "manifests", run, frozenset(trainers), kept
        make_folder(self._folder)
        self._checkpoints: dict[str, KeptCheckpoint] = {}
        self._deltas: dict[str, KeptDelta] = {}
        self._newest: list[KeptCheckpoint] | None = None  # sorted cache; None after a change
        self._newest_deltas: list[KeptDelta] | None = None
        self._token = ""
        self._changed = asyncio.Event()
        self._listed: dict[str, tuple[int, int]] = {}  # shard -> its size, and how many checkpoints list it
        for path in sorted(self._folder.iterdir()):
            if not path.name.startswith("."):
                self._read(path)

    def __contains__(self, digest: object) -> bool:
        return digest in self._checkpoints or digest in self._deltas

    def __iter__(self) -> Iterator[KeptCheckpoint]:
        """Newest first."""
        if self._newest is None:
            self._newest = sorted(self._checkpoints.values(), key=lambda kept: kept.age_rank, reverse=True)
        return iter(self._newest)

    def __len__(self) -> int:
        return len(self._checkpoints)

    def find(self, digest: str) -> KeptCheckpoint | None:
        """The checkpoint with this manifest digest, if it is kept."""
        return self._checkpoints.get(digest)

    def parcel(self, digest: str) -> Parcel | None:
        """The checkpoint or the delta with this digest, if it is kept."""
        return self._checkpoints.get(digest) or self._deltas.get(digest)

    def deltas(self) -> list[KeptDelta]:
        """Deltas kept, newest first."""
        if self._newest_deltas is None:
            self._newest_deltas = sorted(self._deltas.values(), key=lambda delta: delta.age_rank, reverse=True)
        return list(self._newest_deltas)

    def leading_on(self, held: str) -> list[KeptDelta]:
        """Deltas usable by a holder of this checkpoint: those based on it and those that follow
        from there; newest first."""
        return leading_on(self.deltas()[:KEPT_DELTAS], held)  # an archive has thousands, but no chain is that long

    def shard_size(self, digest: str) -> int | None:
        """Bytes of a shard that some kept checkpoint or delta lists, else None."""
        listed = self._listed.get(digest)
        return listed[0] if listed else None

    def lists(self, digest: str) -> bool:
        """Whether some kept checkpoint or delta lists the shard."""
        return digest in self._listed

    def check(self, envelope: Envelope) -> Parcel:
        """Check an envelope without keeping anything. Raises PeerError, or StaleCheckpoint for
        one older than those kept."""
        kept = self._open(envelope)
        mine, most = self._of(kept.signer, kept), self._most(kept)
        if kept.digest not in self and len(mine) >= most and kept.age_rank < mine[-1].age_rank:
            term, step, _ = kept.age_rank
            raise StaleCheckpoint(f"step {step} of term {term} is older than the {most} kept")
        return kept

    @property
    def token(self) -> str:
        """A token of what is kept, which changes whenever anything is added or dropped."""
        if not self._token:
            self._token = digest_of("catalogue/1", *sorted([*self._checkpoints, *self._deltas]))[:16]
        return self._token

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something is added, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def add(self, kept: Parcel) -> list[str]:
        """Keep what `check` accepted, on disk first. Returns the shards that nothing lists any more. Raises OSError."""
        if kept.digest in self:
            return []
        await asyncio.to_thread(write_durably, self._folder / kept.digest, kept.data)
        if kept.digest not in self:  # the same one may have arrived twice concurrently
            self._enter(kept)
        self._changed.set()
        self._changed = asyncio.Event()
        orphans: list[str] = []
        for old in self._too_old(kept):
            orphans += self.drop(old.digest)
        return orphans

    def drop(self, digest: str) -> list[str]:
        """Drop a checkpoint or a delta. Returns the shards that nothing lists any more.

        Deltas to a dropped checkpoint are kept, because they lead on to the newest one from a checkpoint that
        some node may still hold.
        """
        old: Parcel | None = self._checkpoints.pop(digest, None) or self._deltas.pop(digest, None)
        if old is None:
            return []
        self._has_changed()
        (self._folder / digest).unlink(missing_ok=True)
        orphans: list[str] = []
        for shard in set(old.layout.manifest.shards):
            size, count = self._listed[shard]
            if count > 1:
                self._listed[shard] = (size, count - 1)
            else:
                del self._listed[shard]
                orphans.append(shard)
        return orphans

    def _too_old(self, like: Parcel) -> list[Parcel]:
        """The signer's checkpoints, or deltas, that exceed the limits."""
        mine = self._of(like.signer, like)
        if isinstance(like, KeptCheckpoint):
            return mine[self._kept :]
        whole = max((kept.layout.total for kept in self if kept.signer == like.signer), default=0)
        sums = accumulate(delta.layout.total for delta in mine)
        stay = sum(number < self._kept or size <= WORTHWHILE_SHARE * whole for number, size in enumerate(sums))
        return mine[min(stay, self._most(like)) :]

    def _most(self, like: Parcel) -> int:
        return self._kept if isinstance(like, KeptCheckpoint) else max(self._kept, KEPT_DELTAS)

    def _of(self, signer: NodeId, like: Parcel) -> list[Parcel]:
        """The signer's checkpoints, or its deltas, newest first."""
        kept: list[Parcel] = list(self) if isinstance(like, KeptCheckpoint) else list(self.deltas())
        return [parcel for parcel in kept if parcel.signer == signer]

    def _has_changed(self) -> None:
        self._newest, self._newest_deltas, self._token = None, None, ""

    def _enter(self, kept: Parcel) -> None:
        self._has_changed()
        if isinstance(kept, KeptCheckpoint):
            self._checkpoints[kept.digest] = kept
        else:
            self._deltas[kept.digest] = kept
        sizes = {shard: kept.layout.size(index) for index, shard in enumerate(kept.layout.manifest.shards)}
        for shard, size in sizes.items():  # counted once per checkpoint, even if listed repeatedly
            self._listed[shard] = (size, self._listed.get(shard, (size, 0))[1] + 1)

    def _open(self, envelope: Envelope) -> Parcel:
        digest, data = manifest_digest(envelope), to_bytes(envelope)
        if envelope.kind == DELTA_KIND:
            delta = check_delta(envelope, run=self._run, trainers=self._trainers)
            return KeptDelta(digest, envelope.signer, delta, Layout(delta), data)
        manifest = check_manifest(envelope, run=self._run, trainers=self._trainers)
        return KeptCheckpoint(digest, envelope.signer, manifest, Layout(manifest), data)

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
