"""A relay's bounds."""

from __future__ import annotations

from dataclasses import dataclass

from roles.shardcast.catalogue import KEPT
from roles.shardcast.store import RETENTION
from roles.shardcast.work import WORK_BITS

SMALL_PIECE = 2**20
"""Bytes: a trainer's blobs are greater on average."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Bytes, seconds, counts."""

    max_disk: int = 10 * 2**30
    max_blob: int = 8 * 2**20  # of members; shards are bounded by their manifest
    quota_bytes: int = 256 * 2**20  # of each node in each window
    quota_uploads: int = 1024
    window: float = 600.0
    state_share: float = 0.5  # of max_disk: what one trainer may store of its state while none of it can be evicted
    retention: float = RETENTION
    kept: int = KEPT
    archive: bool = False  # nothing is dropped: what no longer fits is refused
    idle: float = 10.0
    base: float = 15.0  # a transfer's longest time is base + size / slowest
    slowest: float = 64 * 1024
    rate: float = 200.0  # requests a second of one address, valid uploads aside
    burst: float = 2000.0
    sponsored_per_hour: int = 60
    work_bits: int = WORK_BITS
    poll: float = 15.0  # between two looks at the checkpoint rows, which other relays usually are ahead of
    pull_stall: float = 10.0
    uploads_at_once: int = 64  # of members together; the trainer's shards are not counted
    uploads_of_one: int = 4
    bulk: int = 2**20  # a shard of so many bytes is taken, or pulled, by a thread of its own

    def total(self, size: int) -> float:
        """Longest time for `size` bytes."""
        return self.base + size / self.slowest

    @property
    def state_bytes(self) -> int:
        """Of each trainer within `retention`: optimizer state is many times what a member ever hands in."""
        return max(self.quota_bytes, int(self.state_share * self.max_disk))

    @property
    def state_uploads(self) -> int:
        """Pieces of it."""
        return max(self.quota_uploads, self.state_bytes // SMALL_PIECE)
