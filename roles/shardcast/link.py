"""One node's access to the relays: single transfers, each bounded in bytes and time, each scored. Decides nothing else.

A relay's response is never trusted beyond its limit: lengths are counted as bytes arrive, redirects are not followed,
compression is not accepted, and the receiver verifies the bytes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import httpx

from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import Malformed, PeerError, TransportError
from dht.identity import NodeKey
from dht.records import unix_ms
from roles.shardcast.exchange import Exchanges, TransferLimits
from roles.shardcast.grants import seal_grant
from roles.shardcast.inflow import BLOCK
from roles.shardcast.lanes import FilePart
from roles.shardcast.manifest import MAX_MANIFEST_BYTES, manifest_digest
from roles.shardcast.reading import MAX_REPLY, check_reply, newest_lines, read_all
from roles.shardcast.replies import (
    DeltaHint,
    News,
    RelayInfo,
    is_usable,
    read_deltas,
    read_held,
    read_news,
)
from roles.shardcast.server_choice import ServerChoice
from roles.shardcast.sinks import Sink

T = TypeVar("T")

MOST_TRIED = 16
TELLING_UPLOAD = 2**18
"""Minimum bytes of an upload for its speed to reflect the line rather than round trips."""
BETWEEN_LINES = 0.01
"""Minimum seconds between two blocks of a streamed response, however much a relay sends."""
_HOLDINGS = "which shards it holds"


Content = Callable[[], AsyncIterator[bytes]]
"""Produces the blob's bytes from the start, each time it is called."""


class RelayLink(Exchanges):
    """Transfers on behalf of one node. `relays` returns those known now. `upload_mbit` is the recent speed of uploads,
    one at a time, in Mbit/s; None before the first one large enough to measure."""

    def __init__(
        self,
        key: NodeKey,
        *,
        run: str,
        relays: Callable[[], Sequence[RelayInfo]],
        http: httpx.AsyncClient,
        limits: TransferLimits | None = None,
    ) -> None:
        super().__init__(http, limits or TransferLimits(), ServerChoice())
        self.run = run
        self.key, self._relays = key, relays
        self.upload_mbit: float | None = None

    def order(
        self, hints: Sequence[str] = (), *, last: Collection[str] = (), most: int = MOST_TRIED
    ) -> list[RelayInfo]:
        """Relays in the order to try them, drawn by score; never this node itself. Hinted ones that do well come first,
        then those whose ids cost something, then the others, then those in `last`.

        At most `most` are returned, so that a flood of dead records cannot make one call last for hours.
        """
        known = {info.node: info for info in self._relays() if info.node != self.key.node and is_usable(info.url)}
        hinted = [node for node in dict.fromkeys(hints) if node in known and self.choice.is_well(node)]
        rank = {node: (node in last, known[node].is_free) for node in known}
        rest = sorted(self.choice.order(node for node in known if node not in hinted), key=rank.__getitem__)
        return [known[node] for node in (*self.choice.order(hinted), *rest)][:most]

    def known(self) -> list[RelayInfo]:
        """Relays known now whose address is usable."""
        return [info for info in self._relays() if is_usable(info.url)]

    async def is_held(self, relay: RelayInfo, digest: str) -> bool:
        """Whether the relay claims to hold the blob. Raises TransportError."""
        with self._scored(relay):
            async with (
                asyncio.timeout(self.limits.base),
                self._request("HEAD", relay, f"/blobs/{digest}") as reply,
            ):
                return bool(reply.status_code == 200)

    async def receive(self, relay: RelayInfo, digest: str, *, limit: int, sink: Sink, wait: float = 0.0) -> None:
        """Stream a blob of at most `limit` bytes into the sink, which verifies it.

        `wait` asks the relay to hold the request that many seconds for a shard that is still arriving there.
        Raises NotHeld, TransportError, Oversize, or WrongBytes (the relay is then banned). Errors of the
        sink's own disk pass through.
        """
        headers = {"X-Wait": f"{wait:g}"} if wait else {}
        started, total = time.monotonic(), self.limits.total(limit) + wait
        with self._scored(relay):
            async with asyncio.timeout(total):
                try:
                    size = await self._fetch(relay, f"/blobs/{digest}", headers, sink, limit)
                except asyncio.CancelledError:
                    if time.monotonic() - started > self.limits.base:  # the caller ran out of patience with it
                        self.choice.failed(relay.node)
                    raise
        self.choice.succeeded(relay.node, size=size, seconds=time.monotonic() - started)

    async def read_part(self, relay: RelayInfo, digest: str, start: int, length: int) -> bytes:
        """`length` bytes of a blob from `start`. Raises NotHeld, TransportError, or Oversize."""
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        with self._scored(relay):
            async with (
                asyncio.timeout(self.limits.total(length)),
                self._request("GET", relay, f"/blobs/{digest}", headers=headers) as reply,
            ):
                if reply.status_code != 206:
                    await check_reply(reply)
                return await read_all(reply, length)

    async def read_holdings(
        self, relay: RelayInfo, manifest: str, *, known: int | None = None, wait: float = 0.0
    ) -> int:
        """Which shards of a checkpoint the relay claims to hold: bit i is shard i.

        The relay is asked to respond within `wait` seconds, earlier once the number it holds is not `known`. Raises
        NotHeld when it does not know the checkpoint (or does not tell), TransportError.
        """
        headers = {"X-Wait": f"{wait:g}"} | ({} if known is None else {"X-Known": str(known)})
        path = f"/manifests/{manifest}/shards"
        return await self._read_json(relay, path, headers, _HOLDINGS, parse=read_held, wait=wait)

    async def follow_holdings(
        self, relay: RelayInfo, manifest: str, told: Callable[[int], None], *, wait: float
    ) -> None:
        """Call `told` with what `read_holdings` would return, and again each time the relay holds another shard, for at
        most `wait` seconds. Raises the same errors."""
        headers, has_told = {"X-Wait": f"{wait:g}", "X-Follow": "1"}, False
        with self._scored(relay):
            async with (
                asyncio.timeout(self.limits.total(MAX_REPLY) + wait),
                self._request("GET", relay, f"/manifests/{manifest}/shards", headers=headers) as reply,
            ):
                await check_reply(reply)
                async for line in newest_lines(reply, MAX_REPLY):
                    if line:
                        told(_parse(relay, line, _HOLDINGS, read_held))
                        has_told = True
                    await asyncio.sleep(BETWEEN_LINES)
            if not has_told:
                raise TransportError(f"relay {relay.node} does not say {_HOLDINGS}")

    async def read_news(self, relay: RelayInfo, *, known: str = "", held: str = "", wait: float = 0.0) -> News:
        """Which checkpoints the relay claims to have: at once or, while the token `known` still names its
        state, as soon as that changes, but after `wait` seconds at the latest. The request says what we
        hold. Raises TransportError."""
        headers = {"X-Wait": f"{wait:g}"} | ({"X-Known": known} if known else {}) | ({"X-Held": held} if held else {})
        parse = partial(read_news, relay)
        return await self._read_json(relay, "/manifests", headers, "which checkpoints it has", parse=parse, wait=wait)

    async def read_deltas(self, relay: RelayInfo) -> list[DeltaHint]:
        """Deltas the relay claims to keep. Raises TransportError."""
        return await self._read_json(relay, "/deltas", {}, "which deltas it keeps", parse=partial(read_deltas, relay))

    async def send(self, relay: RelayInfo, digest: str, size: int, content: Content, *, ask: bool = True) -> None:
        """Upload a blob under a fresh grant; with `ask`, only if the relay does not have it. Raises TransportError."""
        if ask and await self.is_held(relay, digest):
            return
        headers = self._grant(relay, digest, size) | {"Content-Length": str(size)}
        started = time.monotonic()
        with self._scored(relay):
            await self._put(relay, f"/blobs/{digest}", content(), headers, self.limits.total(size))
        self._sent(relay, size, time.monotonic() - started)

    async def send_parts(self, relay: RelayInfo, digest: str, parts: Sequence[FilePart]) -> None:
        """Upload parts of files as one blob, under a fresh grant. Raises TransportError."""
        size = sum(part.length for part in parts)
        if not self._goes_by_lane(size):
            return await self.send(relay, digest, size, partial(_read_parts, parts), ask=False)
        headers = self._grant(relay, digest, size) | {"Content-Length": str(size)}
        started = time.monotonic()
        with self._scored(relay):
            await self._put_parts(relay, f"/blobs/{digest}", headers, parts, self.limits.total(size))
        self._sent(relay, size, time.monotonic() - started)

    async def send_manifest(self, relay: RelayInfo, envelope: Envelope) -> None:
        """Upload a signed manifest. Raises TransportError."""
        data, digest = to_bytes(envelope), manifest_digest(envelope)
        headers = self._grant(relay, digest, len(data))
        with self._scored(relay):
            await self._put(relay, f"/manifests/{digest}", data, headers, self.limits.total(len(data)))

    async def receive_manifest(self, relay: RelayInfo, digest: str, *, wait: float = 0.0) -> Envelope:
        """Fetch a manifest by digest and check its signature. `wait` asks the relay to hold the request that many
        seconds until it has it. Raises TransportError, or PeerError for any other bytes."""
        total, headers = self.limits.total(MAX_MANIFEST_BYTES) + wait, {"X-Wait": f"{wait:g}"} if wait else {}
        with self._scored(relay):
            async with (
                asyncio.timeout(total),
                self._request("GET", relay, f"/manifests/{digest}", headers=headers) as reply,
            ):
                await check_reply(reply)
                data = await read_all(reply, MAX_MANIFEST_BYTES)
        try:
            envelope = from_bytes(data, limit=MAX_MANIFEST_BYTES)
            if envelope.run != self.run or manifest_digest(envelope) != digest:
                raise Malformed("the relay answered with another manifest")  # perhaps an older one, as a rollback
        except PeerError as error:
            self.report_cheat(relay, str(error))
            raise
        return envelope

    async def register(self, relay: RelayInfo, form: object, *, work: int) -> object:
        """Ask the relay to pay for a registration or rotation. Returns its JSON response, at most 64
        KiB. Raises TransportError."""
        with self._scored(relay):
            async with (
                asyncio.timeout(self.limits.total(MAX_REPLY)),
                self._request("POST", relay, "/register", json=form, headers={"X-Work": str(work)}) as reply,
            ):
                await check_reply(reply)
                data = await read_all(reply, MAX_REPLY)
        try:
            return httpx.Response(200, content=data).json()
        except (ValueError, RecursionError) as error:
            raise TransportError(f"relay {relay.node} answered with something that is not JSON") from error

    async def _read_json(
        self,
        relay: RelayInfo,
        path: str,
        headers: dict[str, str],
        what: str,
        *,
        parse: Callable[[Any], T],
        wait: float = 0.0,
    ) -> T:
        with self._scored(relay):
            async with (
                asyncio.timeout(self.limits.total(MAX_REPLY) + wait),
                self._request("GET", relay, path, headers=headers) as reply,
            ):
                await check_reply(reply)
                data = await read_all(reply, MAX_REPLY)
        return _parse(relay, data, what, parse)

    def _sent(self, relay: RelayInfo, size: int, seconds: float) -> None:
        self.choice.succeeded(relay.node, size=size, seconds=seconds)
        if size >= TELLING_UPLOAD:
            rate, before = size * 8 / max(seconds, 1e-6) / 1e6, self.upload_mbit
            self.upload_mbit = rate if before is None else (rate + before) / 2

    def _grant(self, relay: RelayInfo, blob: str, size: int) -> dict[str, str]:
        sealed = seal_grant(self.key, run=self.run, relay=relay.node, blob=blob, size=size, now_ms=unix_ms())
        return {"X-Grant": sealed}


def _parse(relay: RelayInfo, data: bytes, what: str, parse: Callable[[Any], T]) -> T:
    try:
        return parse(json.loads(data))
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise TransportError(f"relay {relay.node} does not say {what}") from error


async def _read_parts(parts: Sequence[FilePart]) -> AsyncIterator[bytes]:
    for part in parts:
        with part.path.open("rb") as file:
            file.seek(part.offset)
            left = part.length
            while left and (block := await asyncio.to_thread(file.read, min(left, BLOCK))):
                left -= len(block)
                yield block
