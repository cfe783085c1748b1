"""Bulk transfers over persistent HTTP/1.1 connections, in threads: from a socket to a sink, from a file to a socket.

The thread that receives a block hashes and writes it while it is in that core's cache. Nothing passes through the event
loop, which would cost more than the bytes do. Scores, time limits and the meaning of a response are left to the caller.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import httpx

from roles.shardcast.errors import Oversize
from roles.shardcast.inflow import BLOCK, LowWater, room
from roles.shardcast.names import Names
from roles.shardcast.pace import Line, Pace
from roles.shardcast.sinks import Sink
from roles.shardcast.threads import Call, run_stoppable

THREADS = 32
KEPT_SECONDS = 4.0
"""A connection that has been idle for longer is not reused: the relay may be about to close it."""
MOST_KEPT = 64
MAX_REFUSAL = 64 * 1024
SUCCESS = (200, 201)


@dataclass(frozen=True, slots=True)
class FilePart:
    """A range of one file's bytes."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts in seconds: to connect, and between two reads or two writes."""

    connect: float
    idle: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: the status, the number of bytes a sink took and, for other bodies, their first 64 KiB."""

    status: int
    size: int = 0
    body: bytes = b""


class Lanes:
    """Connections of one program to all its relays. `close` aborts transfers in progress."""

    def __init__(self, *, names: Names, context: ssl.SSLContext, line: Line) -> None:
        self._names, self._context, self.line = names, context, line
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lane")
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[tuple[float, http.client.HTTPConnection]]] = {}
        self._calls: set[Call] = set()

    async def fetch(
        self, url: str, headers: Mapping[str, str], sink: Sink, *, limit: int, patience: Patience
    ) -> Answer:
        """GET a blob into the sink and commit it if the response is a success. Raises Oversize, the sink's errors, and
        whatever sockets and `http.client` raise."""
        exchange = await self._exchange(httpx.URL(url), patience)
        return await self._run(exchange.call, lambda: exchange.fetch(headers, sink, limit))

    async def send(
        self, url: str, headers: Mapping[str, str], parts: Sequence[FilePart], *, patience: Patience
    ) -> Answer:
        """PUT the parts of files, in order, as one body; without TLS, from the page cache to the socket."""
        exchange = await self._exchange(httpx.URL(url), patience)
        return await self._run(exchange.call, lambda: exchange.send(headers, parts))

    def close(self) -> None:
        """Stop every transfer and close every connection."""
        for call in list(self._calls):
            call.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for kept in self._idle.values():
                for _, connection in kept:
                    connection.close()
            self._idle.clear()

    async def _exchange(self, url: httpx.URL, patience: Patience) -> _Exchange:
        return _Exchange(self, url, patience, await self._names.find(url.raw_host.decode(), within=patience.connect))

    async def _run(self, call: Call, work: Callable[[], Answer]) -> Answer:
        self._calls.add(call)
        try:
            return await run_stoppable(self._threads, call, work)
        finally:
            self._calls.discard(call)

    def take(self, url: httpx.URL) -> http.client.HTTPConnection:
        """An idle connection, or a new one not yet connected. Called in threads."""
        _, host, port = place = _place_of(url)
        with self._lock:
            kept = self._idle.get(place, [])
            while kept:
                since, connection = kept.pop()
                if time.monotonic() - since < KEPT_SECONDS:
                    return connection
                connection.close()
        return http.client.HTTPConnection(host, port)

    def dial(self, url: httpx.URL, addresses: Sequence[str], port: int, patience: Patience) -> socket.socket:
        """A socket to the first address that answers, over TLS if the URL says so. Called in threads."""
        sock = _connect(addresses, port, patience.connect)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme != "https":
                return sock
            return self._context.wrap_socket(sock, server_hostname=url.raw_host.decode())
        except BaseException:
            sock.close()
            raise

    def keep(self, url: httpx.URL, connection: http.client.HTTPConnection) -> None:
        """Return a connection whose response was read to its end. Called in threads."""
        with self._lock:
            if connection.sock is not None and sum(map(len, self._idle.values())) < MOST_KEPT:
                self._idle.setdefault(_place_of(url), []).append((time.monotonic(), connection))
                return
        connection.close()


class _Exchange:
    """One request and its response, in one thread."""

    def __init__(self, lanes: Lanes, url: httpx.URL, patience: Patience, addresses: Sequence[str]) -> None:
        self._lanes, self._url, self._patience, self._addresses = lanes, url, patience, addresses
        self.call = Call()
        self._is_done = False

    def fetch(self, headers: Mapping[str, str], sink: Sink, limit: int) -> Answer:
        with self._connected() as connection, closing(self._ask(connection, headers)) as reply:
            if reply.status not in SUCCESS:
                return self._done(reply, Answer(reply.status, body=reply.read(MAX_REFUSAL + 1)))
            size = _drain(connection, reply, sink, limit, self._lanes.line.down)
            sink.commit()
            return self._done(reply, Answer(reply.status, size=size))

    def send(self, headers: Mapping[str, str], parts: Sequence[FilePart]) -> Answer:
        with self._connected() as connection:
            self._begin(connection, "PUT", headers)
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before the end: the response says why
                for part in parts:
                    _send_part(connection, part, self._lanes.line.up)
            with closing(connection.getresponse()) as reply:
                return self._done(reply, Answer(reply.status, body=reply.read(MAX_REFUSAL + 1)))

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        connection = self._lanes.take(self._url)
        try:
            yield connection
            self.call.use(None)
        except BaseException:
            connection.close()
            raise
        if self._is_done:
            self._lanes.keep(self._url, connection)
        else:
            connection.close()

    def _done(self, reply: http.client.HTTPResponse, answer: Answer) -> Answer:
        """Allow the connection to be reused if the response was read to its end."""
        self._is_done = reply.isclosed()
        return answer

    def _ask(self, connection: http.client.HTTPConnection, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        was_kept = connection.sock is not None
        try:
            self._begin(connection, "GET", headers)
            return connection.getresponse()
        except ConnectionError:
            if not was_kept:
                raise
        connection.close()  # the relay had closed it in the meantime
        self._begin(connection, "GET", headers)
        return connection.getresponse()

    def _begin(self, connection: http.client.HTTPConnection, method: str, headers: Mapping[str, str]) -> None:
        if connection.sock is None:
            connection.sock = self._lanes.dial(self._url, self._addresses, connection.port, self._patience)
        self.call.use(connection.sock)
        connection.sock.settimeout(self._patience.idle)
        connection.putrequest(method, self._url.raw_path.decode(), skip_accept_encoding=True)
        for name, value in {"Accept-Encoding": "identity", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()


def _place_of(url: httpx.URL) -> tuple[str, str, int]:
    """Scheme, host and port, which determine whether a connection can be reused."""
    return url.scheme, url.raw_host.decode(), url.port or (443 if url.scheme == "https" else 80)


def _connect(addresses: Sequence[str], port: int, seconds: float) -> socket.socket:
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), timeout=seconds)
    return socket.create_connection((addresses[-1], port), timeout=seconds)


def _drain(
    connection: http.client.HTTPConnection, reply: http.client.HTTPResponse, sink: Sink, limit: int, pace: Pace
) -> int:
    declared, size, block = reply.length, 0, room()[: pace.piece]
    if declared is not None and declared > limit:
        raise Oversize(f"the blob has more than {limit} bytes")
    level = LowWater(connection.sock)
    while True:
        level.before(left=(declared or 0) - size)
        if not (got := reply.readinto(block)):
            break
        size += got
        if size > limit:
            raise Oversize(f"the blob has more than {limit} bytes")
        sink.take(block[:got])
        pace.wait(got)
    if declared is not None and size != declared:
        raise ConnectionResetError("the relay closed the connection before the end")
    return size


def _send_part(connection: http.client.HTTPConnection, part: FilePart, pace: Pace) -> None:
    send = _send_encrypted if isinstance(connection.sock, ssl.SSLSocket) else _send_plain
    with part.path.open("rb", buffering=0) as file:
        sent = send(connection.sock, file, part, pace)
    if sent != part.length:
        raise OSError(f"{part.path.name} is shorter than its manifest says")


def _send_plain(sock: socket.socket, file: FileIO, part: FilePart, pace: Pace) -> int:
    left = part.length
    while left and (sent := sock.sendfile(file, part.offset + part.length - left, min(left, pace.piece))):
        left -= sent
        pace.wait(sent)
    return part.length - left


def _send_encrypted(sock: socket.socket, file: FileIO, part: FilePart, pace: Pace) -> int:
    file.seek(part.offset)
    left = part.length
    while left and (block := file.read(min(left, BLOCK, pace.piece))):
        sock.sendall(block)
        left -= len(block)
        pace.wait(len(block))
    return part.length - left
