"""Keeps everything in the data folder within one budget, `max_disk`.

A relay's blobs, which are most of what any node keeps, get what the rest leaves, and are evicted least recently used
first (`roles.shardcast.store`). The other roles remove by themselves what they no longer need. This module adds
everything up, deletes old logs when the total is too large, and reports when even that does not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from dht.errors import NO_ROOM, DiskFull
from node.defaults import DISK_LOOK_SECONDS, EVENT_FILE_BYTES, LOG_FILE_BYTES
from node.hardware import free_disk

log = structlog.get_logger()

APART = 2 * EVENT_FILE_BYTES + 2 * LOG_FILE_BYTES + 64 * 2**20
"""Bytes reserved for logs, journals and the ledger's events, besides a relay's blobs."""
ROOM = 32 * 2**20
"""Bytes that must be free before a role that found its disk full is started again."""
ROOM_SECONDS, LONGEST_ROOM_SECONDS = 2.0, 60.0
OLD_LOGS = ("events.1.jsonl", "node.log.1")


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes in a folder, and in each of its direct entries."""

    total: int
    parts: Counter[str]

    @property
    def largest(self) -> str:
        """Name of the largest entry."""
        return self.parts.most_common(1)[0][0] if self.parts else ""


def share_of_blobs(max_disk: int) -> int:
    """Bytes for a relay's blobs: everything but the reserve, for which a small budget sets aside a fifth."""
    return max_disk - min(APART, max_disk // 5)


def share_of_events(max_disk: int) -> int:
    """Size in bytes at which a new event file is started; there are two of them."""
    return min(EVENT_FILE_BYTES, max_disk // 20)


def measure(folder: Path) -> DiskUse:
    """Bytes that a folder's files occupy on disk. Files that vanish in the meantime are
    skipped; links are not followed."""
    parts: Counter[str] = Counter()
    for root, _, names in os.walk(folder):
        place = Path(root).relative_to(folder).parts
        for name in names:
            with contextlib.suppress(OSError):
                parts[place[0] if place else name] += os.lstat(Path(root) / name).st_blocks * 512
    return DiskUse(sum(parts.values()), parts)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is due only to a full disk: the error itself, every error in its group, or its cause."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_disk_full, error.exceptions))
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in NO_ROOM):
        return True
    return error.__cause__ is not None and is_disk_full(error.__cause__)


async def wait_for_room(folder: Path, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Wait until there is free space, or long enough to try again anyway, since a quota is not visible here. Always
    waits a while: even where space is found at once, the role may need more than that."""
    await sleep(ROOM_SECONDS)
    until = asyncio.get_running_loop().time() + LONGEST_ROOM_SECONDS
    while free_disk(folder) < ROOM and asyncio.get_running_loop().time() < until:
        await sleep(ROOM_SECONDS)


class DiskWatch:
    """Keeps a data folder within its budget by deleting old logs, and reports when that is not enough.
    `used` is the last measurement."""

    def __init__(self, folder: Path, max_disk: int) -> None:
        self._folder, self._max_disk = folder, max_disk
        self._is_over = False
        self.used = 0

    async def run(self) -> None:
        """Measure and act every `DISK_LOOK_SECONDS` until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(DISK_LOOK_SECONDS)

    async def look(self) -> None:
        """Measure once. Delete old logs if the total is too large, and log it when even that does not help."""
        found = await asyncio.to_thread(measure, self._folder)
        if found.total > self._max_disk and (given_up := await asyncio.to_thread(self._give_up_logs)):
            log.warning("logs.given_up", files=given_up, used=found.total, budget=self._max_disk)
            found = await asyncio.to_thread(measure, self._folder)
        self.used = found.total
        is_over = found.total > self._max_disk
        if is_over and not self._is_over:
            log.warning("disk.over_budget", used=found.total, budget=self._max_disk, largest=found.largest)
        self._is_over = is_over

    def _give_up_logs(self) -> list[str]:
        there = [name for name in OLD_LOGS if (self._folder / name).exists()]
        for name in there:
            (self._folder / name).unlink(missing_ok=True)
        return there
