"""One blob's file: written through a temporary one and verified, or read in blocks. Knows no index and no budget."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from roles.shardcast.disk import sync_directory
from roles.shardcast.errors import StoreFull, WrongBytes

BLOCK = 2**20
READ_BLOCK = 2**18
"""A thousand readers at once must fit in memory."""


class BlobWriter:
    """Takes one blob's bytes, exactly `size` of them. Leaving it without `commit` deletes them.

    `stored` is called once the blob is in place, `left` when the writer is done with, either way. Without `is_durable`
    a power cut may lose or tear the blob, which whoever reads it next must find out; a kill loses nothing.
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
        self._hash, self._pending, self.received = hashlib.sha256(), bytearray(), 0
        self._file: BinaryIO | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    async def write(self, block: bytes) -> None:
        """Take bytes. Raises WrongBytes once there are too many, StoreFull when the disk refuses."""
        self.received += len(block)
        if self.received > self._size:
            raise WrongBytes(f"more than the {self._size} bytes declared")
        self._pending += block
        if len(self._pending) >= BLOCK:
            await self._flush()

    async def commit(self) -> None:
        """Make the blob part of the store. Raises WrongBytes unless length and digest are right."""
        await self._flush()
        if self.received != self._size:
            raise WrongBytes(f"{self.received} bytes instead of {self._size}")
        if self._hash.hexdigest() != self._digest:
            raise WrongBytes("the bytes do not have the digest they were sent under")
        await self._in_thread(self._move)
        self._stored()

    async def _flush(self) -> None:
        data, self._pending = self._pending, bytearray()
        await self._in_thread(lambda: self._append(data))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise StoreFull(f"the disk took no more: {error.strerror}") from error

    def _append(self, data: bytearray) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(data)
        self._hash.update(data)

    def _move(self) -> None:
        file = self._file
        if file is None:
            raise ValueError("nothing was written")
        file.flush()
        if self._is_durable:
            os.fsync(file.fileno())
        folder = self._final.parent
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            sync_directory(folder.parent)
        os.replace(self._path, self._final)
        if self._is_durable:
            sync_directory(folder)


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
