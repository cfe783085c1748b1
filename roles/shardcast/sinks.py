"""Destinations of a blob's bytes, which are taken in order, hashed and written by one thread,
and counted once verified."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from roles.shardcast.errors import WrongBytes

TAKEN_AT_ONCE = 2**20


class Sink(Protocol):
    """Takes the bytes of one blob and verifies them. Leaving it without `commit` discards them.

    It is entered and left in the event loop; `take` and `commit` block, and are called in a thread, one at a time.
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def take(self, block: bytes | bytearray | memoryview, /) -> None:
        """Write the next bytes. Raises WrongBytes once there are too many, StoreFull on a disk error."""

    def commit(self) -> None:
        """Count the blob as present. Raises WrongBytes unless length and digest are right."""


async def pour(blocks: AsyncIterator[bytes], sink: Sink) -> int:
    """Pass blocks that arrive in the event loop to a sink, about a MiB at a time, and commit
    it. Returns the byte count."""
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
    """A small blob in memory; whoever fetches it limits its size. `data` is verified once committed."""

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
        """Append the bytes."""
        self._taken += block

    def commit(self) -> None:
        """Raises WrongBytes when the digest is wrong."""
        data = bytes(self._taken)
        if hashlib.sha256(data).hexdigest() != self._digest:
            raise WrongBytes("blob does not have the digest asked for")
        self.data = data
