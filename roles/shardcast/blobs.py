"""One blob's file: written via a temporary file and verified, or read in blocks. Knows no index and no disk budget."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dht.disk import sync
from roles.shardcast.disk import reserve_room
from roles.shardcast.errors import StoreFull, WrongBytes

READ_BLOCK = 2**18
"""Bytes per block, small enough that a thousand concurrent readers fit in memory."""


class BlobWriter:
    """A sink for one blob of exactly `size` bytes. Leaving it without `commit` deletes them.

    On leaving, `stored` is called if the blob is in place, then `left`, both in the event loop. Without `is_durable` a
    power cut may lose or tear the blob, and the next reader must detect that; a kill loses nothing.
    """

    def __init__(
        self,
        digest: str,
        size: int,
        *,
        temporary: Path,
        final: Path,
        stored: Callable[[], None],
        left: Callable[[], None],
        is_durable: bool = True,
    ) -> None:
        self._is_durable = is_durable
        self._digest, self._size, self._path, self._final = digest, size, temporary, final
        self._stored, self._left = stored, left
        self._hash, self.received = hashlib.sha256(), 0
        self._file: FileIO | None = None
        self._is_placed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_placed:
            self._stored()
        self._left()
        if self._file is not None:
            self._file.close()
        with suppress(OSError):  # left to the next start
            self._path.unlink(missing_ok=True)

    def take(self, block: bytes | bytearray | memoryview) -> None:
        """Write bytes. Raises WrongBytes once there are too many, StoreFull on a disk error."""
        self.received += len(block)
        if self.received > self._size:
            raise WrongBytes(f"more than the {self._size} bytes declared")
        self._hash.update(block)
        try:
            write_all(self._opened(), block)
        except OSError as error:
            raise _refused(error) from error

    def commit(self) -> None:
        """Move the blob into place. Raises WrongBytes unless length and digest are right, StoreFull on a disk error."""
        if self.received != self._size:
            raise WrongBytes(f"{self.received} bytes instead of {self._size}")
        if self._hash.hexdigest() != self._digest:
            raise WrongBytes("the bytes do not have the digest they were sent under")
        try:
            self._move(self._opened())
        except OSError as error:
            raise _refused(error) from error
        self._is_placed = True

    def _opened(self) -> FileIO:
        if self._file is None:
            self._file = self._path.open("wb", buffering=0)
            reserve_room(self._file.fileno(), self._size)
        return self._file

    def _move(self, file: FileIO) -> None:
        if self._is_durable:
            os.fsync(file.fileno())
        folder = self._final.parent
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            sync(folder.parent)
        os.replace(self._path, self._final)
        if self._is_durable:
            self._sync_name(folder)

    def _sync_name(self, folder: Path) -> None:
        """Sync the folder. If that fails, the blob is refused and deleted again, so that it does
        not occupy uncounted space."""
        try:
            sync(folder)
        except OSError:
            self._final.unlink(missing_ok=True)
            raise


def write_all(file: FileIO, block: bytes | bytearray | memoryview) -> None:
    """Write the whole block, even if a disk that fills up accepts only a part at first. Raises OSError."""
    written = file.write(block)
    while written < len(block):
        written += file.write(memoryview(block)[written:])


def _refused(error: OSError) -> StoreFull:
    return StoreFull(f"the disk took no more: {error.strerror}")


class BlobReader:
    """An open blob."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    async def blocks(self, start: int, length: int) -> AsyncIterator[bytes]:
        """`length` bytes from `start`, in blocks of at most 256 KiB."""
        while length > 0:
            block = await asyncio.to_thread(self._read, start, min(length, READ_BLOCK))
            if not block:
                return
            yield block
            start, length = start + len(block), length - len(block)

    def _read(self, start: int, length: int) -> bytes:
        return os.pread(self.file.fileno(), length, start)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
