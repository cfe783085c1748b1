"""Reads relays' responses, never more of one than the caller allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from dht.errors import PeerError, TransportError
from dht.identity import public_key_of
from roles.shardcast.errors import Oversize
from roles.shardcast.replies import check_answer

MAX_REPLY = 64 * 1024
"""Bytes of a JSON reply."""


async def check_reply(reply: httpx.Response) -> None:
    """Raises what `check_answer` does."""
    is_refusal = reply.status_code >= 400 and reply.status_code != 404
    check_answer(reply.status_code, await read_all(reply, MAX_REPLY) if is_refusal else b"")


async def limited_blocks(reply: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises Oversize."""
    size = 0
    async for block in reply.aiter_raw():
        size += len(block)
        if size > limit:
            raise Oversize(f"the blob has more than {limit} bytes")
        yield block


async def newest_lines(reply: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """For each block that arrives, its last complete line, or an empty one if no line ends in it; earlier lines are
    superseded. A caller that reads slowly leaves a flood waiting at its sender. Raises Oversize."""
    rest = b""
    async for block in reply.aiter_raw():
        whole, _, rest = (rest + block).rpartition(b"\n")
        line = whole.rpartition(b"\n")[2]
        if max(len(line), len(rest)) > limit:
            raise Oversize(f"relay sends more than {limit} bytes")
        yield line
    yield rest


async def read_all(reply: httpx.Response, limit: int) -> bytes:
    """The whole body. Raises Oversize."""
    data = bytearray()
    async for block in reply.aiter_raw():
        data += block
        if len(data) > limit:
            raise Oversize(f"relay sends more than {limit} bytes")
    return bytes(data)


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay's unsigned statement of its identity: a node id, and the run it serves."""

    node: str
    run: str


async def read_status(http: httpx.AsyncClient, url: str, *, seconds: float) -> RelayStatus:
    """Ask the relay at a base URL for its identity. Nothing is decompressed. Raises TransportError."""
    address, headers = url.rstrip("/") + "/status", {"Accept-Encoding": "identity"}
    try:
        async with asyncio.timeout(seconds), http.stream("GET", address, headers=headers) as reply:
            if reply.status_code != httpx.codes.OK:
                raise TransportError(f"HTTP {reply.status_code}")
            said = json.loads(await read_all(reply, MAX_REPLY))
        public_key_of(said["node"])
        return RelayStatus(said["node"], str(said["run"]))
    except TimeoutError as error:
        raise TransportError(f"no answer in {seconds:g} seconds") from error
    except (PeerError, KeyError, TypeError, AttributeError, RecursionError, ExceptionGroup) as error:
        raise TransportError("it does not say which relay it is") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise TransportError(str(error) or type(error).__name__) from error
