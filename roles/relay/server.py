"""Serving an application with uvicorn inside our own loop: no signal handlers, no access log, guarded connections.

uvicorn times out idle keep-alive connections only; what it leaves open is closed here: a request head that does not
come, a reader that does not read, one address with too many connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import h11
import structlog
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dht.errors import NodeError, TransportError
from roles.relay.doors import Doors, party_of
from roles.relay.outlet import send_file
from roles.shardcast.errors import BadCertificate
from roles.shardcast.inflow import BLOCK, LowWater, room
from roles.shardcast.pace import Line, Pace
from roles.shardcast.threads import Call, run_stoppable

log = structlog.get_logger("relay")

MAX_HEAD = 32 * 1024
ZERO_COPY = "http.response.zerocopysend"
RAW_BODY = "intellect.request.rawbody"
"""Our own extension: a request's body straight from the socket, in a thread."""
INTAKE_THREADS = OUTLET_THREADS = 16
FIRST_PART = 2**12
START_SECONDS = 10.0
GRACE = 1


class PortTaken(NodeError):
    """The address cannot be listened on; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM: the certificate with its chain, and its key, if that is not in the same file."""

    chain: Path
    key: Path | None = None

    def check(self) -> None:
        """Raises BadCertificate."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = getattr(error, "strerror", None) or str(error)
            raise BadCertificate(f"cannot serve with the certificate {self.chain}: {reason}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by the relay only")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of a server's connections. Seconds, counts."""

    head: float = 10.0  # for a request's head to come
    reader: float = 30.0  # for a reader to take what is waiting for it
    total: int = 1024
    per_address: int = 512


@dataclass(frozen=True, slots=True)
class Threads:
    """Of one server: bodies that come hold theirs, files that go share them."""

    intake: ThreadPoolExecutor
    outlet: ThreadPoolExecutor


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with time limits on both directions and a bound per address and in all.

    `doors`, `threads` and `line` are shared by all connections of one server.
    """

    def __init__(self, limits: ConnectionLimits, doors: Doors, threads: Threads, line: Line, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits, self._doors, self._threads, self._line = limits, doors, threads, line
        self._was_raw = False
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        self._inner = cast(ASGIApp, self.app)
        self.app = cast(Any, self._with_files)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start waiting for its first request."""
        super().connection_made(transport)
        self._address = party_of(self.client[0]) if self.client else ""
        if not self._doors.enter(self._address, self, transport.abort):
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._expect(None)
        self._doors.leave(self._address, self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came: once they make a request its own limits apply, until then the deadline stands."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect(None)
            self._doors.speaks(self._address, self)
        elif self._deadline is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """The next request's head is waited for as long as the first one's."""
        if self._was_raw:  # h11 saw no body, and would wait for it
            self.conn, self._was_raw = h11.Connection(h11.SERVER, MAX_HEAD), False
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_head()

    def pause_writing(self) -> None:
        """The reader is slow: it has a while to take what is waiting."""
        super().pause_writing()
        self._expect(self._limits.reader)

    def resume_writing(self) -> None:
        """The reader took it."""
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
        if self.scheme == "http":  # TLS wants every byte in its hands
            extensions = {ZERO_COPY: {}, RAW_BODY: {"pour": self._pour}}
        await self._inner({**scope, "extensions": extensions}, receiving, sending)

    async def _pour(
        self, take: Callable[[memoryview], None], size: int, *, idle: float, total: float, last: Callable[[], None]
    ) -> None:
        """Give a body of `size` bytes to `take`, and call `last`, in a thread. What they raise passes through; then the
        connection must be closed. Raises TimeoutError, ClientDisconnect."""
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
                async with asyncio.timeout(within):  # by the loop, which sends what waits before it
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
        except (OSError, TimeoutError, TransportError) as error:  # the reader went away, or does not read
            self.transport.abort()
            raise ClientDisconnect from error

    def _expect_head(self) -> None:
        self._expect(self._limits.head)
        self._doors.is_silent(self._address, self, self.transport.abort)

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


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so once it listens."""
        await super().startup(sockets)
        self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the program's business."""
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    limits: ConnectionLimits | None = None,
    certificate: Certificate | None = None,
    line: Line | None = None,
    flag: str = "--port",
) -> AsyncIterator[str]:
    """Serve until the block is left, then stop within two seconds. Gives the base URL. Bodies keep to the pace of
    `line`.

    Port 0 takes a free one; `flag` chooses another. With a certificate, over TLS only. Raises PortTaken, BadCertificate.
    """
    if certificate is not None:
        certificate.check()
    listener = _listen(host, port, flag)
    limits = limits or ConnectionLimits()
    doors = Doors(limits.total, limits.per_address)
    _silence_uvicorn()
    threads = Threads(
        ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="intake"),
        ThreadPoolExecutor(OUTLET_THREADS, thread_name_prefix="outlet"),
    )
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, limits, doors, threads, line or Line())),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=2 * limits.total,  # ours comes first: those being closed still count there
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    server = _Server(config)
    url = f"{'https' if certificate else 'http'}://{_shown(host)}:{listener.getsockname()[1]}"
    # No TaskGroup: it would turn an error of the caller's block into a group of errors. The task ends in `finally`.
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(START_SECONDS):
            await server.has_started.wait()
        yield url
    finally:
        server.should_exit = True
        await _stopped(server, task)
        listener.close()
        threads.intake.shutdown(wait=False, cancel_futures=True)
        threads.outlet.shutdown(wait=False, cancel_futures=True)


def _silence_uvicorn() -> None:
    """Its logger prints tracebacks of requests cut off at the end; what matters is logged by the application."""
    logger = logging.getLogger("uvicorn.error")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False


async def _stopped(server: uvicorn.Server, task: asyncio.Task[Any]) -> None:
    done, _ = await asyncio.wait([task], timeout=GRACE + 0.5)
    if not done:
        server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait([task], timeout=0.4)
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("server.failed", error=f"{type(error).__name__}: {error}"[:300])


def _listen(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = "another program holds that port" if error.errno == errno.EADDRINUSE else error.strerror
        raise PortTaken(f"cannot listen on {host}:{port}: {reason}; choose another with {flag}") from error
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
