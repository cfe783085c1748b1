"""Where a blob's bytes go: taken in order, hashed and written by the thread that has them, counted once they are right."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from roles.shardcast.errors import WrongBytes

TAKEN_AT_ONCE = 2**20


class Sink(Protocol):
    """Takes the bytes of one blob and verifies them. Leaving it without `commit` forgets them.

    It is entered and left in the event loop; `take` and `commit` block, and are called in a thread, one at a time.
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def take(self, block: bytes | bytearray | memoryview, /) -> None:
        """Take the next bytes. Raises WrongBytes once they are too many, StoreFull when the disk refuses."""

    def commit(self) -> None:
        """Count the blob as there. Raises WrongBytes unless length and digest are right."""


async def pour(blocks: AsyncIterator[bytes], sink: Sink) -> int:
    """Give blocks that arrive in the event loop to a sink, about a MiB at a time, and commit it. Count of bytes."""
    pending, size = bytearray(), 0
    async for block in blocks:
        pending += block
        size += len(block)
        if len(pending) >= TAKEN_AT_ONCE:
            data, pending = pending, bytearray()
            await asyncio.to_thread(sink.take, data)
    await asyncio.to_thread(_finish, sink, pending)
    return size


def _finish(sink: Sink, data: bytearray) -> None:
    if data:
        sink.take(data)
    sink.commit()


class MemorySink:
    """A small blob in memory; whoever fetches it bounds it. `data` is right once committed."""

    def __init__(self, digest: str) -> None:
        self._digest, self._taken = digest, bytearray()
        self.data = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken.clear()

    def take(self, block: bytes | bytearray | memoryview) -> None:
        """Keep them."""
        self._taken += block

    def commit(self) -> None:
        """Raises WrongBytes."""
        data = bytes(self._taken)
        if hashlib.sha256(data).hexdigest() != self._digest:
            raise WrongBytes("blob does not have the digest asked for")
        self.data = data
