"""A content-addressed store on disk: a blob is there complete and right, or not at all. Knows no HTTP and no manifests.

Blobs arrive in `tmp/`, are hashed while they arrive, synced, and renamed to `blobs/ab/abcd..`. The index is rebuilt
from the disk at start; a blob found there is hashed once more before its first byte is served. One budget bounds all.
When space is short, blobs are evicted that nothing asks to keep and that are older than `retention`, least used first.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import structlog

from dht.disk import make_folder
from roles.shardcast.blobs import BlobReader, BlobWriter
from roles.shardcast.disk import RESERVE
from roles.shardcast.errors import StoreFull
from roles.shardcast.sinks import pour

log = structlog.get_logger("shardcast")

RETENTION = 3600.0
"""Seconds an uploaded blob is safe from eviction: longer than a submission stays untallied."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Temporary shortages of the machine, which say nothing about the file."""
_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class _Entry:
    size: int
    stored: float
    used: float
    is_checked: bool


class BlobStore:
    """Not thread-safe: the index lives in the event loop, and only file work is done in threads.

    `is_wanted` says whether a blob belongs to something kept (a checkpoint's shard); `free_space` returns the bytes
    free on the disk. Sizes are bytes, times unix seconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_disk: int,
        retention: float = RETENTION,
        is_wanted: Callable[[str], bool] = lambda digest: False,
        clock: Callable[[], float] = time.time,
        free_space: Callable[[Path], int] | None = None,
    ) -> None:
        self._blobs, self._temporary = root / "blobs", root / "tmp"
        self.max_disk, self._retention = max_disk, retention
        self._is_wanted, self._clock, self._free_space = is_wanted, clock, free_space or _free_space
        self._entries: dict[str, _Entry] = {}
        self._pinned: set[str] = set()
        self._next_arrival = asyncio.Event()
        self._reserved = 0
        self._serial = 0
        self.used = 0
        self.arrivals = self.losses = 0  # blobs added and blobs removed, for whatever reason
        shutil.rmtree(self._temporary, ignore_errors=True)  # what a kill left half-written
        make_folder(self._blobs)
        self._temporary.mkdir()
        self._rebuild()

    def __contains__(self, digest: object) -> bool:
        return digest in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def size(self, digest: str) -> int | None:
        """Bytes of a blob, None when it is not here."""
        entry = self._entries.get(digest)
        return entry.size if entry else None

    def pin(self, digest: str) -> None:
        """Never evict this blob (the spec, data sets), whether it is here yet or not."""
        self._pinned.add(digest)

    def begin(self, digest: str, size: int, *, is_durable: bool = True) -> BlobWriter:
        """Reserve space and open a writer. Raises StoreFull. Damage that a power cut does to a non-durable blob is
        detected when it is first opened again."""
        self._make_room(size)
        self._reserved += size
        self._serial += 1
        return BlobWriter(
            digest,
            size,
            temporary=self._temporary / f"{self._serial}-{digest}",
            final=self._path(digest),
            stored=lambda: self._admit(digest, size),
            left=lambda: self._release(size),
            is_durable=is_durable,
        )

    async def put(self, data: bytes, *, pin: bool = False) -> str:
        """Store bytes that we made ourselves. Returns their digest. Raises StoreFull."""
        digest = hashlib.sha256(data).hexdigest()
        if pin:
            self.pin(digest)
        if digest not in self:
            async with self.begin(digest, len(data)) as writer:
                await pour(_whole(data), writer)
        return digest

    async def open(self, digest: str) -> BlobReader | None:
        """Open a blob for reading; it stays readable if evicted meanwhile (WGT-15). None when it is not
        here, is damaged, or too many files are open. In that last case the blob is kept: readers must not
        be able to make us drop it."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        try:
            file = await _opened(self._path(digest))
        except OSError as error:
            if error.errno not in SHORTAGES:
                self._forget(digest)
            return None
        if not entry.is_checked and not await self._check(digest, entry, file):
            file.close()
            return None
        entry.used = self._clock()
        with suppress(OSError):
            os.utime(self._path(digest), (entry.used, entry.stored))
        return BlobReader(file, entry.size)

    async def intact_paths(self, digests: Iterable[str]) -> list[Path] | None:
        """Paths of blobs, all undamaged; None when one is missing or damaged. They may be
        evicted at any time afterwards."""
        paths = list[Path]()
        for digest in digests:
            reader = await self.open(digest)
            if reader is None:
                return None
            reader.close()
            paths.append(self._path(digest))
        return paths

    async def wait_for(self, digest: str, seconds: float) -> bool:
        """Wait for a blob, for at most `seconds`. Returns whether it is here."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while digest not in self:
                    await self._next_arrival.wait()
        return digest in self

    async def wait_for_any(self, seconds: float) -> None:
        """Wait until any other blob arrives, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._next_arrival.wait()

    def discard(self, digest: str) -> None:
        """Delete a blob, unless it is pinned or wanted."""
        if digest in self._entries and digest not in self._pinned and not self._is_wanted(digest):
            self._forget(digest)

    def _path(self, digest: str) -> Path:
        return self._blobs / digest[:2] / digest

    def _rebuild(self) -> None:
        for folder in sorted(self._blobs.iterdir()):
            for entry in os.scandir(folder) if folder.is_dir() else ():
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    facts = entry.stat()
                    self._entries[entry.name] = _Entry(facts.st_size, facts.st_mtime, facts.st_atime, False)
                    self.used += facts.st_size

    async def _check(self, digest: str, entry: _Entry, file: BufferedReader) -> bool:
        found = await asyncio.to_thread(hashlib.file_digest, file, "sha256")
        if found.hexdigest() != digest:  # WGT-01: a damaged disk must not make us serve wrong bytes
            log.warning("blob.damaged", blob=digest)
            self._forget(digest)
            return False
        entry.is_checked = True
        return True

    def _forget(self, digest: str) -> None:
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self.losses += 1
            try:
                self._path(digest).unlink(missing_ok=True)
                self.used -= entry.size
            except OSError as error:  # its bytes stay counted, since they are still there
                log.warning("blob.undeleted", blob=digest, why=error.strerror)

    def _make_room(self, size: int) -> None:
        if size > self.max_disk:
            raise StoreFull(f"a blob of {size} bytes is larger than the whole disk budget of {self.max_disk}")
        if self._lacks(size):
            for digest in self._evictable():
                self._forget(digest)
                if not self._lacks(size):
                    break
        if self._lacks(size):
            raise StoreFull(f"no room for {size} bytes: {self.used} of {self.max_disk} are in use")

    def _lacks(self, size: int) -> bool:
        if self.used + self._reserved + size > self.max_disk:
            return True
        return self._free_space(self._blobs) < size + RESERVE

    def _evictable(self) -> list[str]:
        now = self._clock()
        for entry in self._entries.values():  # stored by a clock that was ahead: it would stay until that time
            entry.stored = min(entry.stored, now)
        oldest = now - self._retention
        loose = [digest for digest, entry in self._entries.items() if entry.stored < oldest]
        loose = [digest for digest in loose if digest not in self._pinned and not self._is_wanted(digest)]
        return sorted(loose, key=lambda digest: self._entries[digest].used)

    def _admit(self, digest: str, size: int) -> None:
        now = self._clock()
        if digest not in self._entries:
            self._entries[digest] = _Entry(size, now, now, True)
            self.used += size
            self.arrivals += 1
        self._next_arrival.set()
        self._next_arrival = asyncio.Event()

    def _release(self, size: int) -> None:
        self._reserved -= size


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _free_space(path: Path) -> int:
    return shutil.disk_usage(path).free


async def _opened(path: Path) -> BufferedReader:
    """Open a file in a thread, which closes it again if nobody waits for it any more."""
    opening = asyncio.ensure_future(asyncio.to_thread(path.open, "rb"))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opened: asyncio.Future[BufferedReader]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
