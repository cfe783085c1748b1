"""Checks that relays which accepted a blob still hold it, and uploads it to others when they do not.

Being a relay costs nothing, so one may accept every upload and keep none; unchecked, its uploaders would lose their
credit. The check asks for a random part, which only a holder of the blob can return.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from dht.errors import PeerError, TransportError
from dht.identity import NodeId
from roles.shardcast.errors import NotHeld
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import RelayInfo

log = structlog.get_logger("shardcast")

COPIES = 2
"""Number of relays that should hold a blob."""
AFTER = (2.0, 20.0)
"""Seconds after the upload at which the blob is checked."""
PART = 4096
MAX_BYTES = 64 * 2**20
"""Bytes of blobs kept in memory for another upload; the oldest are dropped first."""
TICK = 0.5

Push = Callable[[RelayInfo, str, bytes], Awaitable[bool]]


@dataclass(slots=True)
class _Watched:
    digest: str
    data: bytes
    holders: tuple[NodeId, ...]
    since: float
    looks: int = 0


class Keeper:
    """Recent uploads. `push` uploads a blob to one relay and returns whether that succeeded."""

    def __init__(self, link: RelayLink, push: Push) -> None:
        self.after: Sequence[float] = AFTER
        self.tick = TICK
        self._link, self._push = link, push
        self._watched: deque[_Watched] = deque()

    def watch(self, digest: str, data: bytes, holders: Sequence[NodeId]) -> None:
        """Watch a blob that these relays accepted."""
        self._watched.append(_Watched(digest, data, tuple(holders), time.monotonic()))
        while sum(len(item.data) for item in self._watched) > MAX_BYTES:
            self._watched.popleft()

    async def run(self) -> None:
        """Check blobs when due, until cancelled."""
        while True:
            for item in [item for item in self._watched if self._is_due(item)]:
                item.looks += 1
                await self._look(item)
            self._watched = deque(item for item in self._watched if item.looks < len(self.after))
            await asyncio.sleep(self.tick)

    def _is_due(self, item: _Watched) -> bool:
        return item.looks < len(self.after) and time.monotonic() - item.since >= self.after[item.looks]

    async def _look(self, item: _Watched) -> None:
        known = {relay.node: relay for relay in self._link.known()}
        held = [node for node in item.holders if node in known and await self._has(known[node], item)]
        for relay in self._link.order():
            if len(held) >= COPIES:
                break
            if relay.node not in item.holders and await self._push(relay, item.digest, item.data):
                log.info("blob.given_again", blob=item.digest, relay=relay.node)
                held.append(relay.node)
        item.holders = tuple(held)

    async def _has(self, relay: RelayInfo, item: _Watched) -> bool:
        start = random.randrange(max(1, len(item.data) - PART))
        wanted = item.data[start : start + PART]
        try:
            found = await self._link.read_part(relay, item.digest, start, len(wanted))
        except NotHeld:
            self._link.report_cheat(relay, "it took a blob and does not have it")
            return False
        except (PeerError, TransportError):
            return False
        if found != wanted:
            self._link.report_cheat(relay, "it took a blob and gives other bytes")
        return found == wanted
