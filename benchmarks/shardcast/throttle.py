"""A link emulated in user space: limited bandwidth in each direction, plus delay. One gate per server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

BLOCK = 64 * 1024
SLACK, BACKLOG_SLACK = 0.01, 0.2
"""Seconds of unused link time that may be used later. This makes up for sleeps that last too long, or for a busy
machine while bytes wait here."""
AT_ONCE = 0.002


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth in bits per second, and one-way delay in seconds."""

    bandwidth: float
    delay: float


class _Way:
    """One direction, shared by all connections: bytes leave one after the other, at the link's rate."""

    def __init__(self, link: Link) -> None:
        self._link, self._free = link, 0.0

    async def admit(self, size: int, *, waited: float) -> float:
        """Wait until the link has sent these bytes, which the reader waited `waited` seconds for. Returns when
        they arrive, in the loop's time."""
        loop = asyncio.get_running_loop()
        slack = BACKLOG_SLACK if waited < AT_ONCE else SLACK
        self._free = max(self._free, loop.time() - slack) + size * 8 / self._link.bandwidth
        left = self._free
        if left > loop.time():
            await asyncio.sleep(left - loop.time())
        return max(left, loop.time()) + self._link.delay


@asynccontextmanager
async def throttled(port: int, link: Link) -> AsyncIterator[str]:
    """Run a gate in front of a local port; yields its URL."""
    there, back = _Way(link), _Way(link)
    tasks: set[asyncio.Task[None]] = set()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, far_writer, there))
                group.create_task(_carry(far_reader, writer, back))

    server = await asyncio.start_server(joined, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way) -> None:
    """Bytes enter at the link's rate and leave `delay` later; those in transit overlap."""
    flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

    async def land() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, block = await flight.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if not block:
                return
            writer.write(block)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(_quietly(land()))
        try:
            asked = time.monotonic()
            while block := await reader.read(BLOCK):
                await flight.put((await way.admit(len(block), waited=time.monotonic() - asked), block))
                asked = time.monotonic()
        except OSError:
            pass
        await flight.put((0.0, b""))
    writer.close()


async def _quietly(landing: asyncio.Future[None] | object) -> None:
    with suppress(OSError):
        await landing  # type: ignore[misc]
