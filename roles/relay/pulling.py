"""How a relay gets the shards of the checkpoints on its shelf: rebuilt from deltas, or pulled from other relays.

A source that fails only costs time, never what is already here (WGT-11).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from dht.errors import NodeError, TransportError
from dht.identity import NodeId
from roles.relay.metrics import Counters
from roles.relay.rebuilding import Rebuilder
from roles.relay.settings import RelaySettings
from roles.shardcast.catalogue import KeptCheckpoint, Parcel
from roles.shardcast.gather import FROM_ONE, ShardGatherer
from roles.shardcast.link import RelayLink
from roles.shardcast.shelf import Shelf
from roles.shardcast.sinks import Sink

log = structlog.get_logger("relay")

PUSH_QUIET = 0.5
"""Seconds without a pushed shard after which the trainer is assumed to push elsewhere, and pulling begins."""
PULLS_AT_ONCE = 2
RETRY_PULL = 3.0
MOST_REMEMBERED = 1024
"""Number of checkpoints whose last attempt is remembered."""


class Puller:
    """Completes checkpoints, two at a time. `hints` lists, by manifest digest, relays that are said to hold a
    checkpoint. Without a link only pushed deltas and shards are of use."""

    def __init__(self, shelf: Shelf, link: RelayLink | None, *, settings: RelaySettings, counters: Counters) -> None:
        self._shelf, self._link, self._settings, self._counters = shelf, link, settings, counters
        self.rebuilder = Rebuilder(shelf, link, opener=self._opener, arrived=self._count)
        self.hints: dict[str, tuple[NodeId, ...]] = {}
        self._pulling: set[str] = set()
        self._rested: dict[str, float] = {}  # by checkpoint: when it may be pulled again
        self._news = asyncio.Event()
        self._last_push = 0.0

    def wake(self) -> None:
        """Look for something to pull now, because there is another checkpoint."""
        self._news.set()

    def note_push(self) -> None:
        """Record that a trainer has pushed a manifest or a shard."""
        self._last_push = time.monotonic()
        self._news.set()

    async def run(self) -> None:
        """Pull what is missing until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                self._forget_old()
                for kept in self._shelf.catalogue:
                    if self._is_due(kept) and len(self._pulling) < PULLS_AT_ONCE:
                        self._pulling.add(kept.digest)
                        group.create_task(self._pull_one(kept))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(self._settings.poll, RETRY_PULL)):
                        await self._news.wait()

    def _is_due(self, kept: KeptCheckpoint) -> bool:
        if kept.digest in self._pulling or not has_rested(self._rested, kept.digest) or not self._shelf.missing(kept):
            return False
        if self.rebuilder.way_to(kept):
            return True
        return self._link is not None and not self.rebuilder.may_come(kept, self._pulling)

    async def _pull_one(self, kept: KeptCheckpoint) -> None:
        try:
            if not await self._rebuild(kept):
                await self._pull_shards(kept)
            if self._shelf.missing(kept):
                self._rested[kept.digest] = time.monotonic() + RETRY_PULL
        except (NodeError, OSError) as error:
            log.warning("checkpoint.unpulled", step=kept.manifest.step, manifest=kept.digest, reason=str(error))
            self._rested[kept.digest] = time.monotonic() + RETRY_PULL
        finally:
            self._pulling.discard(kept.digest)
            self._news.set()

    async def _rebuild(self, kept: KeptCheckpoint) -> bool:
        """Rebuild the checkpoint from deltas, if possible. Returns whether it is complete now."""
        chain = self.rebuilder.way_to(kept)
        if not chain:
            return False
        await self._until_quiet(lambda: not any(map(self._shelf.missing, chain)))
        return await self.rebuilder.rebuild(kept, chain, self.hints.get(kept.digest, ()))

    async def _pull_shards(self, kept: KeptCheckpoint) -> None:
        if self._link is None:
            return
        await self._until_useful(self._link, kept)
        missing = self._shelf.missing(kept)
        if not missing:
            return
        gatherer = ShardGatherer(
            self._link,
            kept.layout,
            self._opener(kept),
            digest=kept.digest,
            hints=self.hints.get(kept.digest, ()),
            arrived=lambda index: self._count(kept.layout.size(index)),
            from_whole=FROM_ONE,
        )
        await gatherer.gather(missing)
        log.info("checkpoint.pulled", step=kept.manifest.step, manifest=kept.digest, shards=len(missing))

    async def _until_quiet(self, is_enough: Callable[[], bool]) -> None:
        """Wait while the trainer pushes shards here: pulling the same ones would transfer them twice."""
        while not is_enough() and (left := self._last_push + PUSH_QUIET - time.monotonic()) > 0:
            await self._shelf.store.wait_for_any(left)

    async def _until_useful(self, link: RelayLink, kept: KeptCheckpoint) -> None:
        """Wait while the trainer pushes shards here, but only until another relay has some that we lack."""
        while (left := self._last_push + PUSH_QUIET - time.monotonic()) > 0:
            for relay in link.order(self.hints.get(kept.digest, ()), most=PULLS_AT_ONCE):
                with suppress(NodeError):
                    if await link.read_holdings(relay, kept.digest, known=0, wait=left) & ~self._shelf.holdings(kept):
                        return
            await self._shelf.store.wait_for_any(left)

    def _count(self, size: int) -> None:
        self._counters.bytes_pulled += size

    def _opener(self, kept: Parcel) -> Callable[[int], Sink | None]:
        def open_sink(index: int) -> Sink | None:
            digest = kept.layout.manifest.shards[index]
            if digest in self._shelf.store:
                return None
            if kept.digest not in self._shelf.catalogue:
                raise TransportError("the checkpoint is no longer kept")
            return self._shelf.begin(digest, kept.layout.size(index), is_shard=True)

        return open_sink

    def _forget_old(self) -> None:
        self.hints = {digest: hints for digest, hints in self.hints.items() if digest in self._shelf.catalogue}
        if len(self._rested) > MOST_REMEMBERED:
            self._rested.clear()


def has_rested(times: Mapping[str, float], digest: str) -> bool:
    """Whether something may be tried again; `times` holds the earliest time, in seconds of the monotonic clock."""
    return times.get(digest, 0.0) <= time.monotonic()
