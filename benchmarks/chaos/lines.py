"""The lines between the processes. Every connection goes through a proxy here, which loses, delays and repeats
messages, and separates the nodes in a partition from the rest.

Requests to relays and to the chain are handled one by one: a request is lost, its response is lost, it is
delayed, or (when it is short) it arrives twice. Traffic between p2pd daemons is encrypted, so there bytes are
delayed and connections break.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.chaos.processes import Owners

CHUNK = 64 * 1024
SHORT = 32 * 1024
"""Maximum size in bytes of a request that may be repeated."""
_HEAD = re.compile(rb"^(GET|HEAD|POST|PUT|DELETE) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
DIAL_SECONDS = 5.0


@dataclass(slots=True)
class Weather:
    """Probabilities of each fault per request (`chunk`: per piece of an encrypted stream). Seconds limit a delay."""

    is_bad: bool = False
    lost: float = 0.01
    answer_lost: float = 0.01
    repeated: float = 0.02
    late: float = 0.05
    late_seconds: float = 0.5
    chunk_late: float = 0.01
    chunk_late_seconds: float = 0.25
    chunk_cut: float = 0.0002
    happened: Counter[str] = field(default_factory=Counter)

    def strikes(self, rng: random.Random, name: str, chance: float) -> bool:
        """Whether the fault happens now."""
        if not self.is_bad or rng.random() >= chance:
            return False
        self.happened[name] += 1
        return True


@dataclass(slots=True)
class Partition:
    """The nodes cut off from all others; empty for none. `owners` finds the owners of connections."""

    owners: Callable[[], Owners]
    apart: frozenset[str] = frozenset()
    healed: asyncio.Event = field(default_factory=asyncio.Event)

    def divides(self, source: str | None, target: str) -> bool:
        """Whether these two are separated."""
        return source is not None and (source in self.apart) != (target in self.apart)


@dataclass(eq=False, slots=True)
class _Connection:
    source: str | None
    ports: tuple[int, int]
    task: asyncio.Task[None] | None = None


class Line:
    """All connections to one listener. `source` is their owner where the line belongs to one node."""

    def __init__(
        self,
        target: str,
        port: int,
        *,
        protocol: Literal["http", "stream"],
        weather: Weather,
        partition: Partition,
        seed: str,
        source: str | None = None,
    ) -> None:
        self.target, self.port = target, 0
        self._behind, self._protocol, self._source = port, protocol, source
        self._weather, self._partition = weather, partition
        self._rng = random.Random(f"{seed}/{source}/{target}/{protocol}")
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, port: int) -> None:
        """Listen; port 0 picks a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close open connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            if connection.task is not None:
                connection.task.cancel()
        await asyncio.gather(*(c.task for c in self._open if c.task is not None), return_exceptions=True)

    def divide(self, owners: Owners) -> None:
        """Close the connections that cross the partition."""
        for connection in list(self._open):
            source = connection.source or owners.of(*connection.ports)
            if self._partition.divides(source, self.target) and connection.task is not None:
                connection.task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._source, (writer.get_extra_info("peername")[1], self.port))
        connection.task = asyncio.current_task()
        self._open.add(connection)
        try:
            if self._partition.apart:
                source = connection.source or (await asyncio.to_thread(self._partition.owners)).of(*connection.ports)
                if self._partition.divides(source, self.target):
                    await self._partition.healed.wait()
                    return
            await self._carry(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # cut, or closed at the end
        finally:
            self._open.discard(connection)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(DIAL_SECONDS):
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        exchange = _Exchange(self._weather, self._rng, self._behind)
        try:
            async with asyncio.TaskGroup() as group:
                if self._protocol == "http":
                    group.create_task(exchange.carry_requests(reader, behind_writer))
                    group.create_task(exchange.carry_answers(behind_reader, writer))
                else:
                    group.create_task(exchange.carry_chunks(reader, behind_writer))
                    group.create_task(exchange.carry_chunks(behind_reader, writer))
        except* OSError:  # one side has closed, or the line broke
            pass
        finally:
            behind_writer.transport.abort()


class _Ended(OSError):
    """One side has closed, or the line broke."""


class _Exchange:
    """The two directions of one connection."""

    def __init__(self, weather: Weather, rng: random.Random, behind: int) -> None:
        self._weather, self._rng, self._behind = weather, rng, behind
        self._loses_answer = False

    async def carry_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests. A piece that begins like a request is taken for the start of one, since
        clients here do not pipeline."""
        while data := await reader.read(CHUNK):
            if _HEAD.match(data):
                await self._strike(data)
            await _send(writer, data)
        raise _Ended

    async def _strike(self, data: bytes) -> None:
        weather, rng = self._weather, self._rng
        if weather.strikes(rng, "request lost", weather.lost):
            raise _Ended
        if weather.strikes(rng, "request late", weather.late):
            await asyncio.sleep(rng.uniform(0, weather.late_seconds))
        if _is_whole(data) and weather.strikes(rng, "request repeated", weather.repeated):
            await self._send_first_copy(data)
        self._loses_answer = weather.strikes(rng, "answer lost", weather.answer_lost)

    async def _send_first_copy(self, data: bytes) -> None:
        """Deliver the same request over another connection, and discard its response."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(DIAL_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._behind)
                try:
                    await _send(writer, data)
                    await reader.read(CHUNK)
                finally:
                    writer.transport.abort()

    async def carry_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward responses."""
        while data := await reader.read(CHUNK):
            if self._loses_answer:
                raise _Ended
            await _send(writer, data)
        raise _Ended

    async def carry_chunks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward encrypted bytes."""
        weather, rng = self._weather, self._rng
        while data := await reader.read(CHUNK):
            if weather.strikes(rng, "stream cut", weather.chunk_cut):
                raise _Ended
            if weather.strikes(rng, "stream late", weather.chunk_late):
                await asyncio.sleep(rng.uniform(0, weather.chunk_late_seconds))
            await _send(writer, data)
        raise _Ended


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _is_whole(data: bytes) -> bool:
    """Whether a piece is a short request with its complete body."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found or len(data) > SHORT or b"transfer-encoding" in head.lower():
        return False
    length = _LENGTH.search(head + b"\r\n")
    return len(body) == (int(length[1]) if length else 0)
