"""Fetching many shards: any order, any relay, bounded at once, each sink verified on arrival. Used by clients and relays."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dht.errors import NodeError, TransportError
from roles.shardcast.errors import Oversize, WrongBytes
from roles.shardcast.link import RelayInfo, RelayLink, Sink
from roles.shardcast.shards import Layout

PATIENT_AFTER = 3
"""Shards in a row that no relay has; until then another one is tried at once."""
WAIT_FOR_SHARD = 0.5
"""Seconds a relay is asked to hold a request for a shard on its way to it."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class ShardGatherer:
    """One checkpoint's missing shards. `open_sink` gives None for a shard that came by another way meanwhile; `arrived` is
    told of each one fetched."""

    def __init__(
        self,
        link: RelayLink,
        layout: Layout,
        open_sink: Callable[[int], Sink | None],
        *,
        hints: Sequence[str] = (),
        arrived: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._link, self._layout, self._open_sink, self._hints = link, layout, open_sink, tuple(hints)
        self._arrived = arrived
        self._moved = time.monotonic()

    async def gather(self, missing: Iterable[int]) -> None:
        """Fetch them all. Raises TransportError after `stall` seconds without one arriving, StoreFull at once."""
        order = list(missing)
        random.shuffle(order)  # neighbours fetch different shards first, and serve each other sooner
        queue = deque(order)
        self._moved = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._link.limits.concurrency, len(queue))):
                    group.create_task(self._work(queue))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _work(self, queue: deque[int]) -> None:
        misses, pause = 0, FIRST_PAUSE
        while queue:
            index = queue.pop()
            if await self._try_all(index, WAIT_FOR_SHARD if misses >= PATIENT_AFTER else 0.0):
                self._moved, misses, pause = time.monotonic(), 0, FIRST_PAUSE
                continue
            queue.appendleft(index)  # one that is here already may be had meanwhile
            misses += 1
            if time.monotonic() - self._moved > self._link.limits.stall:  # WGT-12
                raise TransportError(f"no relay gave a shard for {self._link.limits.stall:g} seconds")
            if misses >= PATIENT_AFTER:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _try_all(self, index: int, wait: float) -> bool:
        for relay in self._link.order(self._hints):
            sink = self._open_sink(index)
            if sink is None or await self._try_one(relay, index, sink, wait):
                return True
        return False

    async def _try_one(self, relay: RelayInfo, index: int, sink: Sink, wait: float) -> bool:
        digest, size = self._layout.manifest.shards[index], self._layout.size(index)
        try:
            async with sink:
                await self._link.receive(relay, digest, limit=size, sink=sink, wait=wait)
        except Oversize:
            self._link.choice.failed(relay.node)  # the manifest's word stands: here it is the relay that lies
            return False
        except (WrongBytes, TransportError):
            return False
        self._arrived(index)
        return True


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """A group of one task's worth of errors as the one that matters: ours before anything else."""
    ours, _ = errors.split(NodeError)
    found: BaseException = ours or errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
