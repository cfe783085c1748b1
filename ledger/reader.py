"""Keeps a run's events up to date from the chain: one request per poll, logs only when the head has moved.

Owns the cache and its handling of re-orgs. The newest block it shows is as deep as the node requires. A long history is
read in batches, each stored when it is done. Each refresh does a bounded amount of work, so a claimed head that does
not exist costs no more than that. Sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ledger.block_source import BATCH_REQUESTS, LOG_RANGE, BlockSource
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.event_file import EventFile, Reading
from ledger.events import EventLog
from ledger.records import Block, Registration
from ledger.registrations import SignedRegistrations
from ledger.rpc import Caller
from ledger.wallet import Domain

POLL_SECONDS = 0.05
"""Minimum time between polls, so that a burst of reads shares one request."""
MAX_BATCHES = 128
"""Batches per refresh: two million blocks in a thousand requests. The next refresh continues from there."""
OVERLAP = 8
LAG_SECONDS = 600.0
"""How long a chain that ends below the newest block shown is taken for a lagging
end-point; after that it is believed."""
MAX_BLOCKS = 8192
ANCHORS = 256
KEPT_EVERY = 128
"""Blocks without an event after which the position is stored on disk anyway."""
KEPT_SECONDS = 1.0
"""Minimum time between such writes: a made-up chain has any number of empty blocks."""


class RunReader:
    """Reads one run, from the block of its creation."""

    def __init__(
        self,
        rpc: Caller,
        *,
        domain: Domain,
        run: str,
        first_block: int,
        confirmations: int = 1,
        file: EventFile | None = None,
        pass_over: Callable[[], None] = lambda: None,
        lag_seconds: float = LAG_SECONDS,
    ) -> None:
        """`pass_over` is called when an end-point's response proved wrong, so that another is asked next."""
        self._source = BlockSource(rpc, contract=domain.contract, run=run)
        self._pass_over = pass_over
        self._lag_seconds = lag_seconds
        self._behind_since: float | None = None
        self._first_block = first_block
        self._depth = confirmations - 1
        self._is_partial = False  # the head is only part of the way to the claimed one, so must not be shown
        self._file = file
        self._is_loaded = file is None
        self._kept, self._unkept = first_block - 1, first_block  # last block on disk; first that is not, or not so
        self._kept_at = -KEPT_SECONDS
        self._newest: Block | None = None
        self._events = EventLog()
        self._head: Block | None = None
        self._anchors: deque[Block] = deque(maxlen=ANCHORS)
        self._blocks: dict[int, Block] = {}
        self._registrations = SignedRegistrations(domain=domain, run=run)
        self._polled = 0.0
        self._failed = 0.0
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()

    async def head(self) -> Block:
        """The newest block seen that is deep enough."""
        await self.refresh()
        return self._must_have_head()

    async def events(self) -> EventLog:
        """All events of the run up to the newest block. The caller must not modify the result."""
        await self.refresh()
        return self._events

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`. The caller must not modify the result."""
        return self._registrations.in_force((await self.events()).registrations, until)

    async def block(self, number: int) -> Block | None:
        """The block with this number; None when it does not exist yet."""
        if number not in self._blocks:
            head = await self.head()
            if number > head.number or number < 0:
                return None
            found = await self._source.find_block(number)
            if found is None:
                return None
            self._remember(found)
        return self._blocks[number]

    async def refresh(self, *, now: bool = False) -> None:
        """Catch up with the chain; at most one request in `POLL_SECONDS` unless `now`.

        Raises LedgerUnavailable, also when a long history has not been read to its end: what was read is
        kept, and the next call continues. Callers that waited for a failed attempt share its failure, so ten
        readers wait no longer than one.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock:
            if self._failed > asked:
                raise LedgerUnavailable("no RPC end-point answers")
            is_fresh = self._head is not None and not self._is_partial and loop.time() - self._polled < POLL_SECONDS
            if is_fresh and not now:
                return
            is_done = False
            try:
                await self._poll()
                is_done = True
            except LedgerError:
                self._failed = loop.time()
                self._source.piece = LOG_RANGE
                raise
            finally:
                if not is_done:  # also when the caller gave up waiting; then `piece` stays small
                    self._pass_over()
            self._source.piece = min(
                LOG_RANGE, 2 * self._source.piece
            )  # what was too large may have been junk in a few blocks
            self._polled = loop.time()

    async def _poll(self) -> None:
        if not self._is_loaded:
            await self._load()
        newest, parent = await self._source.newest_block()
        head = newest
        if self._depth:
            if newest == self._newest and not self._is_partial:
                return
            head, parent = await self._source.block(max(0, newest.number - self._depth))
        if head != self._head and not self._is_behind(head):
            await self._catch_up(head, parent=parent)
        self._newest = newest

    async def _load(self) -> None:
        """Load the events on disk. The next poll finds by the anchors which of them are no longer on the chain."""
        file = self._must_have_file()
        try:
            for reading in await asyncio.to_thread(file.load):
                self._events.forget_from(reading.first)
                self._forget_after(reading.first - 1)
                self._events.add(reading.logs)
                self._head = reading.head
                self._anchors.append(reading.head)
                self._kept, self._unkept = reading.head.number, reading.head.number + 1
            is_sound = self._events.is_complete()
        except LedgerError:
            is_sound = False
        if not is_sound:
            self._start_anew()
        self._is_loaded = True

    def _start_anew(self) -> None:
        self._head, self._events, self._is_partial = None, EventLog(), False
        self._anchors.clear()
        self._kept, self._unkept = self._first_block - 1, self._first_block
        if self._file is not None:
            self._file.discard()

    def _keep(self, unread: int, head: Block, logs: Sequence[Mapping[str, Any]]) -> None:
        """Store what was read on disk, unless it is only a few more empty blocks."""
        if self._file is None:
            return
        self._unkept = min(self._unkept, unread)
        clock = asyncio.get_running_loop().time()
        is_due = head.number - self._kept >= KEPT_EVERY and clock - self._kept_at >= KEPT_SECONDS
        if logs or self._unkept <= self._kept or is_due:
            self._file.append(Reading(self._unkept, head, logs))
            self._kept, self._unkept, self._kept_at = head.number, head.number + 1, clock

    async def _catch_up(self, head: Block, *, parent: str) -> None:
        for _ in range(MAX_BATCHES):
            if await self._read_batch(head, parent=parent):
                return
        read = self._head.number if self._head else self._first_block
        raise LedgerUnavailable(f"the run's events are read up to block {read} of {head.number}: the next try goes on")

    async def _read_batch(self, head: Block, *, parent: str) -> bool:
        """Read one batch towards `head`, and store it. Returns whether `head` was reached."""
        unread = await self._first_unread(parent)
        # Re-read some blocks: behind a load balancer the log index may trail the head.
        start = max(self._first_block, unread - OVERLAP)
        # Fetch the block before its logs, so that the next poll detects a re-org in between.
        stop = start + BATCH_REQUESTS * max(2, self._source.piece) - 1
        until = head if stop >= head.number else (await self._source.block(stop))[0]
        logs = await self._source.logs(start, until.number)
        if logs is None:
            return False
        self._take_in(unread, until, logs)
        self._is_partial = until != head
        return not self._is_partial

    def _take_in(self, unread: int, head: Block, logs: Sequence[Mapping[str, Any]]) -> None:
        """Accept what was read. Raises LedgerError when it is invalid or incomplete."""
        self._events.replace_from(unread, logs)
        if not self._events.is_complete():
            self._start_anew()  # the next poll starts over
            raise LedgerUnavailable("the RPC end-point left out logs")
        self._keep(unread, head, logs)
        self._head = head
        self._anchors.append(head)
        self._remember(head)

    async def _first_unread(self, parent: str) -> int:
        """First block to read: after the last one read, or after the last one that is still on the chain."""
        if self._head is None:
            return self._first_block
        if parent == self._head.hash:
            return self._head.number + 1
        distance = 1
        while distance <= len(self._anchors):
            anchor = self._anchors[-distance]
            if await self._source.find_block(anchor.number) == anchor:
                if distance > 1:
                    self._forget_after(anchor.number)
                return anchor.number + 1
            distance *= 2
        self._forget_after(-1)
        return self._first_block

    def _forget_after(self, number: int) -> None:
        self._blocks = {each: block for each, block in self._blocks.items() if each <= number}
        while self._anchors and self._anchors[-1].number > number:
            self._anchors.pop()

    def _is_behind(self, head: Block) -> bool:
        """Whether an end-point merely lags: its head is a known block, below one that was shown recently."""
        is_known = self._blocks.get(head.number) == head
        if self._head is None or self._is_partial or head.number >= self._head.number or not is_known:
            self._behind_since = None
            return False
        clock = asyncio.get_running_loop().time()
        self._behind_since = clock if self._behind_since is None else self._behind_since
        return clock - self._behind_since < self._lag_seconds

    def _remember(self, block: Block) -> None:
        self._blocks[block.number] = block
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.pop(next(iter(self._blocks)))

    def _must_have_file(self) -> EventFile:
        if self._file is None:
            raise ValueError("nothing is kept on disk")
        return self._file

    def _must_have_head(self) -> Block:
        if self._head is None:
            raise LedgerUnavailable("the chain was not read yet")
        return self._head
