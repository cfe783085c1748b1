"""One connection of a relay's server: time limits on request head, body and reader, and bodies handled in threads.

uvicorn only times out idle keep-alive connections. The other cases are closed here: a request head that never arrives,
a client that does not read, one address with too many connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import h11
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dht.errors import TransportError
from roles.relay.connection_slots import ConnectionSlots, party_of
from roles.relay.outlet import send_file
from roles.shardcast.inflow import BLOCK, LowWater, room
from roles.shardcast.pace import Line, Pace
from roles.shardcast.threads import Call, run_stoppable

MAX_HEAD = 32 * 1024
ZERO_COPY = "http.response.zerocopysend"
RAW_BODY = "intellect.request.rawbody"
"""Our own ASGI extension: a request's body straight from the socket, in a thread."""
FIRST_PART = 2**12
"""Bytes of a file sent through the event loop when a head still waits to be sent before it."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of a server's connections, in seconds and counts."""

    head: float = 10.0  # for a request's head to arrive
    reader: float = 30.0  # for a client to read what is waiting for it
    total: int = 1024
    per_address: int = 512


@dataclass(frozen=True, slots=True)
class Threads:
    """A server's thread pools: each incoming body holds a thread of `intake`; outgoing
    files share those of `outlet`."""

    intake: ThreadPoolExecutor
    outlet: ThreadPoolExecutor


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with time limits on both directions and bounds per address and in total.

    `slots`, `threads` and `line` are shared by all connections of one server.
    """

    def __init__(
        self, limits: ConnectionLimits, slots: ConnectionSlots, threads: Threads, line: Line, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._limits, self._slots, self._threads, self._line = limits, slots, threads, line
        self._was_raw = False
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        self._inner = cast(ASGIApp, self.app)
        self.app = cast(Any, self._with_files)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start waiting for its first request."""
        super().connection_made(transport)
        self._address = party_of(self.client[0]) if self.client else ""
        if not self._slots.take(self._address, self, transport.abort):
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self._expect(None)
        self._slots.release(self._address, self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Data arrived. Once it makes a request, the request's own limits apply; until then the deadline remains."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect(None)
            self._slots.mark_busy(self._address, self)
        elif self._deadline is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """Wait for the next request's head as long as for the first one's."""
        if self._was_raw:  # h11 saw no body and would wait for it
            self.conn, self._was_raw = h11.Connection(h11.SERVER, MAX_HEAD), False
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_head()

    def pause_writing(self) -> None:
        """The client reads slowly: it has `reader` seconds to take what is waiting."""
        super().pause_writing()
        self._expect(self._limits.reader)

    def resume_writing(self) -> None:
        """The client took what was waiting."""
        self._expect(None)
        super().resume_writing()

    async def _with_files(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, which may send files by ASGI's zero-copy extension: from the page cache to the socket."""

        async def sending(message: Message) -> None:
            if message["type"] == ZERO_COPY:
                await self._send_file(message["file"], message["offset"], message["count"])
            else:
                await send(message)
                await self._line.up.pause(len(message.get("body", b"")))

        async def receiving() -> Message:
            message = await receive()
            await self._line.down.pause(len(message.get("body", b"")))
            return message

        extensions: dict[str, Any] = {}
        if self.scheme == "http":  # TLS must encrypt every byte itself
            extensions = {ZERO_COPY: {}, RAW_BODY: {"pour": self._pour}}
        await self._inner({**scope, "extensions": extensions}, receiving, sending)

    async def _pour(
        self, take: Callable[[memoryview], None], size: int, *, idle: float, total: float, last: Callable[[], None]
    ) -> None:
        """Pass a body of `size` bytes to `take`, then call `last`, in a thread. Their exceptions pass through, and the
        connection must then be closed. Raises TimeoutError, ClientDisconnect."""
        if self.transport.is_closing():
            raise ClientDisconnect
        self.flow.pause_reading()
        first, self.cycle.body = memoryview(self.cycle.body), bytearray()
        self._was_raw = self.cycle.more_body
        self.cycle.more_body = False
        call = Call()
        source = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        try:
            call.use(source)
            source.settimeout(idle)
            work = partial(_receive, source, first, take, last, size, time.monotonic() + total, self._line.down)
            await run_stoppable(self._threads.intake, call, work)
        except ConnectionError as error:
            raise ClientDisconnect from error
        finally:
            source.close()

    async def _send_file(self, file: BinaryIO, offset: int, count: int) -> None:
        if self.transport.is_closing():
            raise ClientDisconnect
        self.conn.send_with_data_passthrough(h11.Data(data=cast(bytes, range(count))))  # only its length is looked at
        first, within = 0, self._limits.reader
        try:
            if self.transport.get_write_buffer_size():
                first = min(count, FIRST_PART)
                async with asyncio.timeout(within):  # through the loop, which first sends what is queued
                    await self.loop.sendfile(self.transport, file, offset, first)
            await send_file(
                self._threads.outlet,
                self.transport,
                file,
                offset + first,
                count - first,
                within=within,
                pace=self._line.up,
            )
        except (OSError, TimeoutError, TransportError) as error:  # the client is gone or does not read
            self.transport.abort()
            raise ClientDisconnect from error

    def _expect_head(self) -> None:
        self._expect(self._limits.head)
        self._slots.mark_idle(self._address, self, self.transport.abort)

    def _expect(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort) if seconds is not None else None


def _receive(
    source: socket.socket,
    first: memoryview,
    take: Callable[[memoryview], None],
    last: Callable[[], None],
    size: int,
    until: float,
    pace: Pace,
) -> None:
    left = size - len(first)
    if len(first):
        take(first)
        pace.wait(len(first))
    whole, level = room(), LowWater(source)
    while left > 0:
        level.before(left=left)
        block = whole[: min(left, BLOCK, pace.piece)]
        _fill(block, source, until)
        take(block)
        left -= len(block)
        pace.wait(len(block))
    last()


def _fill(block: memoryview, source: socket.socket, until: float) -> None:
    while len(block):
        got = source.recv_into(block)
        if not got:
            raise ConnectionResetError("the sender closed the connection")
        if time.monotonic() > until:
            raise TimeoutError
        block = block[got:]
