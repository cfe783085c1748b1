"""One request to a relay: bounded in time, scored, over httpx or, for bulk transfers, over a lane."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import structlog

from dht.errors import TransportError
from roles.shardcast.errors import NotHeld, Oversize, RelayRefused, WrongBytes
from roles.shardcast.lanes import FilePart, Patience
from roles.shardcast.reading import check_reply, limited_blocks
from roles.shardcast.relay_http import RelayHttp
from roles.shardcast.replies import HELD_OPEN, RelayInfo, check_answer
from roles.shardcast.server_choice import ServerChoice
from roles.shardcast.sinks import Sink, pour

log = structlog.get_logger("shardcast")


_FAULTS = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    http.client.HTTPException,
    TimeoutError,
    OSError,
    ValueError,
    ExceptionGroup,  # raised by the HTTP library's own task groups
)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Bounds of a transfer. Seconds, bytes, bytes per second."""

    connect: float = 5.0
    idle: float = 10.0  # between two reads or two writes
    base: float = 15.0  # on top of size / slowest
    slowest: float = 64 * 1024
    concurrency: int = 6  # shards at once
    stall: float = 60.0  # without a single shard arriving
    news: float = HELD_OPEN  # how long a relay is asked to hold the request for a manifest it does not have yet
    # bytes of a checkpoint: a smaller one is sent whole to each relay, which then has it at once
    fan_out_from: int = 32 * 2**20
    fan_out: float = 2.0  # without a further shard from a relay's neighbours, before the shards are sent to it
    bulk: int = 2**20  # a blob that may be this large uses a lane of its own, in a thread

    def total(self, size: int) -> float:
        """Maximum seconds for a transfer of `size` bytes."""
        return self.base + size / self.slowest


class Exchanges:
    """Requests to relays over one HTTP client, which may have lanes. Base of `RelayLink`."""

    def __init__(self, http: httpx.AsyncClient, limits: TransferLimits, choice: ServerChoice) -> None:
        self._http, self.limits, self.choice = http, limits, choice
        self._lanes = http.lanes if isinstance(http, RelayHttp) else None

    def _goes_by_lane(self, size: int) -> bool:
        """Whether a transfer of `size` bytes uses a lane, which occupies a thread."""
        return self._lanes is not None and size >= self.limits.bulk

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        relay: RelayInfo,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        content: AsyncIterator[bytes] | bytes | None = None,
        json: object = None,
    ) -> AsyncIterator[httpx.Response]:
        """A response whose body is still to be read."""
        timeout = httpx.Timeout(self.limits.idle, connect=self.limits.connect, pool=self.limits.base)
        url = _url_of(relay, path)
        all_headers = {"Accept-Encoding": "identity", **(headers or {})}
        async with self._http.stream(
            method, url, headers=all_headers, content=content, json=json, timeout=timeout, follow_redirects=False
        ) as reply:
            yield reply

    async def _put(
        self, relay: RelayInfo, path: str, content: AsyncIterator[bytes] | bytes, headers: dict[str, str], total: float
    ) -> None:
        """PUT within `total` seconds. Raises what `check_answer` does."""
        async with (
            asyncio.timeout(total),
            self._request("PUT", relay, path, content=content, headers=headers) as reply,
        ):
            await check_reply(reply)

    async def _fetch(self, relay: RelayInfo, path: str, headers: dict[str, str], sink: Sink, limit: int) -> int:
        """GET into the sink and commit it. Returns the number of bytes."""
        if self._lanes is not None and self._goes_by_lane(limit):
            url = _url_of(relay, path)
            answer = await self._lanes.fetch(url, headers, sink, limit=limit, patience=self._patience)
            check_answer(answer.status, answer.body)
            return answer.size
        async with self._request("GET", relay, path, headers=headers) as reply:
            await check_reply(reply)
            return await pour(limited_blocks(reply, limit), sink)

    async def _put_parts(
        self, relay: RelayInfo, path: str, headers: dict[str, str], parts: Sequence[FilePart], total: float
    ) -> None:
        """PUT parts of files over a lane, within `total` seconds. Raises what `check_answer` does."""
        if self._lanes is None:
            raise TransportError("no lanes here: ask `_goes_by_lane` first")
        async with asyncio.timeout(total):
            answer = await self._lanes.send(_url_of(relay, path), headers, parts, patience=self._patience)
            check_answer(answer.status, answer.body)

    @contextmanager
    def _scored(self, relay: RelayInfo) -> Iterator[None]:
        """Turn network failures into TransportError and lower the relay's score. Refusals and
        missing blobs do not count."""
        try:
            yield
        except (NotHeld, RelayRefused, Oversize):
            raise
        except WrongBytes as error:
            self.report_cheat(relay, str(error))
            raise
        except TransportError:
            self.choice.failed(relay.node)
            raise
        except _FAULTS as error:
            self.choice.failed(relay.node)
            text = str(error) or type(error).__name__
            raise TransportError(f"relay {relay.node} at {relay.url}: {text}") from error

    def report_cheat(self, relay: RelayInfo, what: str) -> None:
        """Ban a relay that served wrong bytes, and log it."""
        self.choice.cheated(relay.node)
        log.warning("relay.dropped", relay=relay.node, reason=what)

    @property
    def _patience(self) -> Patience:
        return Patience(self.limits.connect, self.limits.idle)


def _url_of(relay: RelayInfo, path: str) -> str:
    return relay.url.rstrip("/") + path
