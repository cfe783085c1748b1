"""Reads request bodies within limits of time and size."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from roles.relay.connection_slots import party_of
from roles.relay.connections import RAW_BODY
from roles.relay.refusal import Refusal
from roles.shardcast.sinks import Sink, pour

LONGEST_WAIT = 10.0
"""Maximum number of seconds that a response is held back."""
DRAINED = 2**20
"""Bytes of a refused body that are still read, so that the refusal reaches the sender."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def address_of(request: Request) -> str:
    """The address that the connection is counted under (`party_of`). Headers that claim another are ignored."""
    return party_of(request.client.host) if request.client else ""


def digest_in_path(request: Request) -> str:
    """The digest in the path. Raises Refusal when it is malformed."""
    digest = str(request.path_params["digest"])
    if not _DIGEST.fullmatch(digest):
        raise Refusal(404, "not_a_digest", "a blob is named by 64 lower-case hexadecimal digits")
    return digest


def declared_length(request: Request) -> int:
    """Content-Length. Raises Refusal when there is none (chunked bodies are not accepted)."""
    text = request.headers.get("content-length", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refusal(411, "length_required", "an upload says its length")
    return int(text)


async def body_blocks(request: Request, *, idle: float, total: float) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises Refusal when nothing arrives for `idle` seconds, or not
    everything within `total`."""
    stream = request.stream()
    end = asyncio.get_running_loop().time() + total
    while True:
        try:
            async with asyncio.timeout(min(idle, end - asyncio.get_running_loop().time())):
                block = await anext(stream, None)
        except TimeoutError as error:
            raise Refusal(408, "too_slow", "the body came too slowly") from error
        if block is None:
            request.state.is_body_read = True
            return
        if block:
            yield block


async def pour_body(request: Request, sink: Sink, size: int, *, idle: float, total: float) -> None:
    """Read a body of `size` bytes into a sink and commit it, directly from the socket where the server can. Raises
    Refusal, and the sink's errors."""
    raw = request.scope.get("extensions", {}).get(RAW_BODY)
    if raw is None or "expect" in request.headers:
        await pour(body_blocks(request, idle=idle, total=total), sink)
        return
    request.state.is_body_lost = True
    try:
        await raw["pour"](sink.take, size, idle=idle, total=total, last=sink.commit)
    except TimeoutError as error:
        raise Refusal(408, "too_slow", "the body came too slowly") from error
    request.state.is_body_lost = False


async def read_body(request: Request, *, limit: int, idle: float, total: float) -> bytes:
    """Read a small body completely. Raises Refusal when it is over the limit."""
    if declared_length(request) > limit:
        raise Refusal(413, "too_large", f"at most {limit} bytes are taken here")
    data = bytearray()
    async for block in body_blocks(request, idle=idle, total=total):
        data += block
        if len(data) > limit:
            raise Refusal(413, "too_large", f"at most {limit} bytes are taken here")
    return bytes(data)


async def drain(request: Request) -> bool:
    """Read the rest of a refused body if it is short and arrives at once. Returns whether its end was reached."""
    if getattr(request.state, "is_body_lost", False):
        return False
    if getattr(request.state, "is_body_read", False):
        return True
    left = DRAINED
    try:
        async with asyncio.timeout(1.0):
            while left > 0:
                message = await request.receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return True
                left -= len(message.get("body", b""))
    except (TimeoutError, ClientDisconnect):
        return False
    return False


def waiting_time(request: Request) -> float:
    """Seconds that the client would wait for a response, from X-Wait; at most LONGEST_WAIT."""
    try:
        seconds = float(request.headers.get("x-wait", "0"))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else 0.0
