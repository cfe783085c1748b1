"""A relay's limits."""

from __future__ import annotations

from dataclasses import dataclass

from roles.shardcast.catalogue import KEPT
from roles.shardcast.store import RETENTION
from roles.shardcast.work import WORK_BITS

SMALL_PIECE = 2**20
"""Bytes; a trainer's blobs are larger on average."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Limits in bytes, seconds and counts."""

    max_disk: int = 10 * 2**30
    max_blob: int = 8 * 2**20  # of members; a shard's size is bounded by its manifest
    quota_bytes: int = 256 * 2**20  # of each node in each window
    quota_uploads: int = 1024
    window: float = 600.0
    state_share: float = 0.5  # of max_disk: how much unevictable state one trainer may store
    retention: float = RETENTION
    kept: int = KEPT
    archive: bool = False  # nothing is evicted: what no longer fits is refused
    idle: float = 10.0
    base: float = 15.0  # a transfer may take base + size / slowest seconds
    slowest: float = 64 * 1024
    rate: float = 200.0  # requests a second per address, valid uploads not counted
    burst: float = 2000.0
    sponsored_per_hour: int = 60
    work_bits: int = WORK_BITS
    poll: float = 15.0  # between two reads of the checkpoint rows; other relays usually announce sooner
    pull_stall: float = 10.0
    uploads_at_once: int = 64  # of all members together; the trainer's shards are not counted
    uploads_of_one: int = 4
    bulk: int = 2**20  # shards from this size on are received or pulled in a thread of their own

    def total(self, size: int) -> float:
        """Maximum seconds for a transfer of `size` bytes."""
        return self.base + size / self.slowest

    @property
    def state_bytes(self) -> int:
        """Bytes of state per trainer within `retention`: optimizer state is many times what a member ever uploads."""
        return max(self.quota_bytes, int(self.state_share * self.max_disk))

    @property
    def state_uploads(self) -> int:
        """Number of uploads for that state."""
        return max(self.quota_uploads, self.state_bytes // SMALL_PIECE)
