"""`GET /status` (JSON) and `GET /metrics` (Prometheus text) on loopback. Read-only, bounded, and free of secrets.

A hand-written server of a page, because it serves two small documents and must not cost a relay the import of more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from node.defaults import STATUS_REQUEST_BYTES, STATUS_TIMEOUT_SECONDS
from node.errors import ConfigError

Status = Mapping[str, Any]
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PHRASES = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


@asynccontextmanager
async def status_server(port: int, read: Callable[[], Status]) -> AsyncIterator[int]:
    """Serve until left; yields the port. Raises ConfigError when it is taken."""
    try:
        server = await asyncio.start_server(_Connection(read), "127.0.0.1", port, limit=STATUS_REQUEST_BYTES)
    except OSError as error:
        raise ConfigError(
            f"cannot open the status port {port} on 127.0.0.1: {error.strerror}; choose another with --status-port"
        ) from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


class _Connection:
    def __init__(self, read: Callable[[], Status]) -> None:
        self._read = read

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(answer(head, self._read))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a caller that does not finish its request gets no answer
        finally:
            writer.close()


def answer(head: bytes, read: Callable[[], Status]) -> bytes:
    """The whole reply to a request head. Only local host names are served, so that no web page can read it."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    hosts = [line.partition(":")[2].strip() for line in lines[1:] if line.lower().startswith("host:")]
    if len(words) != 3:
        return _reply(400, "text/plain", "not a request\n")
    if hosts and hosts[0].rpartition(":")[0] not in LOCAL_NAMES and hosts[0] not in LOCAL_NAMES:
        return _reply(403, "text/plain", "local callers only\n")
    if words[0] != "GET":
        return _reply(405, "text/plain", "GET only\n")
    match words[1].partition("?")[0]:
        case "/status":
            return _reply(200, "application/json", json.dumps(read(), default=str) + "\n")
        case "/metrics":
            return _reply(200, "text/plain; version=0.0.4", format_metrics(read()))
    return _reply(404, "text/plain", "there is /status and /metrics\n")


def format_metrics(status: Status) -> str:
    """Numbers of a status as Prometheus text; the counts of events under one name with a label."""
    lines = [
        f"intellect_node_{name} {value:g}"
        for name, value in status.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    events = status.get("events", {})
    lines += [f'intellect_node_events_total{{event="{name}"}} {count}' for name, count in sorted(events.items())]
    return "\n".join(lines) + "\n"


def _reply(code: int, kind: str, body: str) -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data
