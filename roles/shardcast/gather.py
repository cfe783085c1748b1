"""Fetches many shards: in any order, from any relay, with bounded concurrency, each verified on arrival. Used by
clients and relays.

A few relays are asked which shards they hold, and keep reporting as soon as they hold another. So the gatherer need not
guess where a shard has arrived, and a chain of relays moves at the pace of its slowest link. Only relays that do not
report, or were not asked, are asked for shards that they may not have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from dht.errors import PeerError, TransportError, first_error
from roles.shardcast.errors import Oversize, WrongBytes
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shards import Layout
from roles.shardcast.sinks import Sink

PATIENT_AFTER = 3
"""Consecutive shards that no relay has, up to which another shard is tried at once."""
WAIT_FOR_SHARD = 0.5
"""Seconds a relay is asked to hold a request for a shard that is still arriving there."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
ASKED = 4
"""Number of relays asked which shards they hold."""
FOLLOWED = 1.0
"""Seconds a relay is asked to keep reporting. It is then asked anew, since it may have claimed
shards it did not deliver."""
ASK_AGAIN = 0.25
USELESS_AFTER = 5.0
"""Seconds without anything useful after which another relay is asked instead."""
FROM_ONE = 2
"""Concurrent shards from one relay that is itself still receiving: more would share its link, and all would be late."""


class ShardGatherer:
    """One checkpoint's missing shards. `open_sink` returns None for a shard that has arrived another way; `arrived` is
    called for each one fetched. `from_whole` is the number fetched at once from a relay that holds all shards, by
    default the overall concurrency. A node that passes shards on wants few at once, so that each arrives sooner."""

    def __init__(
        self,
        link: RelayLink,
        layout: Layout,
        open_sink: Callable[[int], Sink | None],
        *,
        digest: str,
        hints: Sequence[str] = (),
        arrived: Callable[[int], None] = lambda index: None,
        from_whole: int | None = None,
    ) -> None:
        self._link, self._layout, self._open_sink, self._hints = link, layout, open_sink, tuple(hints)
        self._digest, self._arrived = digest, arrived
        self._from_whole = from_whole or link.limits.concurrency
        self.served: Counter[str] = Counter()  # verified bytes, by the relay they came from
        self._moved = time.monotonic()
        self._every = (1 << len(layout.manifest.shards)) - 1
        self._holdings: dict[str, int] = {}
        self._queue: deque[int] = deque()
        self._scouted: set[str] = set()
        self._unheard: set[str] = set()  # scouted, and about to report
        self._doubts = defaultdict[str, int](int)  # by relay: shards that it claimed but did not deliver
        self._busy: Counter[str] = Counter()
        self._news = asyncio.Event()

    async def gather(self, missing: Iterable[int]) -> None:
        """Fetch all missing shards. Raises TransportError after `stall` seconds without one
        arriving, StoreFull at once."""
        order = list(missing)
        random.shuffle(order)  # neighbours then fetch different shards first, and can serve each other sooner
        queue = self._queue = deque(order)
        self._moved = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                asked = self._link.order(self._hints, most=ASKED)
                self._scouted = {relay.node for relay in asked}
                self._unheard = set(self._scouted)
                scouts = [group.create_task(self._scout(relay)) for relay in asked]
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(self._link.limits.concurrency, len(queue))):
                        workers.create_task(self._work(queue))
                for scout in scouts:
                    scout.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _scout(self, relay: RelayInfo) -> None:
        """Keep track of which shards a relay holds. Switches to another relay when it fails
        or is useless for too long."""
        useful = time.monotonic()
        while True:
            asked = time.monotonic()
            does_answer = await self._follow(relay)
            if self._is_of_use(relay):
                useful = time.monotonic()
            elif not does_answer or time.monotonic() - useful > USELESS_AFTER:
                relay, useful = self._elsewhere(relay), time.monotonic()
            await asyncio.sleep(max(0.0, asked + ASK_AGAIN - time.monotonic()))

    async def _follow(self, relay: RelayInfo) -> bool:
        """Follow for a while which shards a relay holds. Returns whether it reported."""
        if self._holdings.get(relay.node) == self._every:
            await asyncio.sleep(LONGEST_PAUSE)
            return True
        self._doubts.pop(relay.node, None)
        try:
            told = partial(self._hear, relay.node)
            await self._link.follow_holdings(relay, self._digest, told, wait=FOLLOWED)
        except (PeerError, TransportError):
            self._holdings.pop(relay.node, None)
            return False
        finally:
            self._unheard.discard(relay.node)
        return True

    def _hear(self, node: str, held: int) -> None:
        self._unheard.discard(node)
        self._holdings[node] = held & self._every & ~self._doubts[node]
        self._tell()

    def _is_of_use(self, relay: RelayInfo) -> bool:
        held = self._holdings.get(relay.node, 0)
        return not self._queue or held == self._every or any(held >> index & 1 for index in self._queue)

    def _elsewhere(self, relay: RelayInfo) -> RelayInfo:
        """A relay that no scout follows, preferably one that has not reported yet; the given one when there is none."""
        others = [other for other in self._link.order(self._hints) if other.node not in self._scouted]
        other = min(others, key=lambda other: other.node in self._holdings, default=relay)
        self._scouted.discard(relay.node)
        self._scouted.add(other.node)
        return other

    async def _work(self, queue: deque[int]) -> None:
        misses, pause = 0, FIRST_PAUSE
        while queue:
            index = self._next(queue)
            if index is None:  # shards are only at relays busy with us, or at relays that will report them
                await self._pause(LONGEST_PAUSE)
                self._check_stall()
                continue
            is_patient = misses >= PATIENT_AFTER and not self._holdings  # else another may be reported first
            if await self._try_all(index, WAIT_FOR_SHARD if is_patient else 0.0):
                self._moved, misses, pause = time.monotonic(), 0, FIRST_PAUSE
                continue
            queue.appendleft(index)  # try another first, which may be available already
            misses += 1
            self._check_stall()
            if misses >= PATIENT_AFTER:
                await self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _check_stall(self) -> None:
        """Raises TransportError when no shard has arrived for `stall` seconds."""
        if time.monotonic() - self._moved > self._link.limits.stall and not self._busy.total():  # WGT-12
            raise TransportError(f"no relay gave a shard for {self._link.limits.stall:g} seconds")

    def _next(self, queue: deque[int]) -> int | None:
        """Take a shard that some relay reports and has a free place for; any shard when no relay reports one.

        None when only relays without a free place have one, or every relay will report once it has one.
        """
        free = busy = 0
        for node, held in self._holdings.items():
            if self._busy[node] < self._places(held):
                free |= held
            else:
                busy |= held
        index = next((index for index in reversed(queue) if free >> index & 1), None)
        if index is None:
            if any(busy >> index & 1 for index in queue) or not self._may_guess():
                return None
            index = queue[-1]
        queue.remove(index)
        return index

    def _may_guess(self) -> bool:
        """Whether some relay may have a shard without reporting it."""
        silent = self._holdings.keys() | self._unheard
        return any(relay.node not in silent for relay in self._link.order(self._hints))

    def _places(self, held: int) -> int:
        """Number of shards fetched at once from a relay that holds these shards."""
        return self._from_whole if held == self._every else FROM_ONE

    async def _pause(self, seconds: float) -> None:
        """Wait for news of a shard, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _try_all(self, index: int, wait: float) -> bool:
        for relay in self._link.order(self._hints):
            held = self._holdings.get(relay.node)
            if held is not None and not (held >> index & 1 and self._busy[relay.node] < self._places(held)):
                continue
            sink = self._open_sink(index)
            if sink is None or await self._try_one(relay, index, sink, wait):
                return True
        return False

    async def _try_one(self, relay: RelayInfo, index: int, sink: Sink, wait: float) -> bool:
        digest, size = self._layout.manifest.shards[index], self._layout.size(index)
        self._busy[relay.node] += 1
        try:
            async with sink:
                await self._link.receive(relay, digest, limit=size, sink=sink, wait=wait)
        except Oversize:
            self._link.choice.failed(relay.node)  # the manifest is authoritative here, so the relay lies
            return False
        except (WrongBytes, TransportError):
            self._doubt(relay.node, index)
            return False
        finally:
            self._busy[relay.node] -= 1
            self._tell()
        self.served[relay.node] += size
        self._arrived(index)
        return True

    def _doubt(self, node: str, index: int) -> None:
        """Disregard a relay's claim to a shard it did not deliver, until it reports anew."""
        self._doubts[node] |= 1 << index
        if node in self._holdings:
            self._holdings[node] &= ~(1 << index)
