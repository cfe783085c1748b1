"""Signed rows over the DHT and over relays' boards at once: written to both, read as the union of both.

The key decides which relays' boards carry it (rendezvous hashing), so that writers and readers meet. While boards
respond, a DHT that is silent, eclipsed or down delays nobody. While no board does, the DHT works alone as before.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import structlog

from dht.envelope import Envelope, to_bytes
from dht.errors import Malformed, TransportError
from dht.records import unix_ms
from dht.rows import Membership, Outcome, RowGate, RowStore, Subject, everyone, newest, nobody
from roles.boards.client import Follower, Poster
from roles.ports import Directory
from roles.shardcast.replies import RelayInfo, is_usable

log = structlog.get_logger()

BOARDS = 2
"""Number of boards per key."""
MAX_RELAYS = 16
"""Maximum number of relays whose boards one node writes to or reads from."""
DHT_PATIENCE = 1.5
"""Seconds that a read waits for the DHT when boards have responded, and a write when a board holds the row."""
POOR_PATIENCE = 0.3
"""The same once the DHT is known not to deliver."""
OPEN_AT_ONCE = 2
"""Maximum DHT reads left open after boards have answered."""
MAX_WRITES, MAX_ARRIVED = 64, 8192
"""Maximum concurrent writes to the DHT, and completed ones remembered after their writer was told to try again."""
SILENT_SECONDS = 6.0
"""Seconds without a response from the DHT after which that is logged, and boards are asked more often."""
WANTED_SECONDS = 60.0
"""How long a key is followed after it was last read."""
TURN_SECONDS = 1.0
BEHIND_SECONDS = 8.0
"""Age at which a row that only boards have shows that the DHT does not deliver: an eclipsed
DHT answers but hides rows."""
COMPARE_SECONDS = 2.0
MAX_AHEAD = 1024
QUIET_PAUSE, BUSY_PAUSE = 0.5, 0.1
"""Pause between two requests to a board, while the DHT delivers and while it does not."""
SWEEP_SECONDS = 30.0


class UnionDirectory:
    """Implements the directory's `publish` and `read`. `run` keeps the boards going; without it there are none.

    `relays` returns those known now. `membership`, `settled` and `about` limit which of the boards'
    rows are kept, as in the DHT.
    """

    def __init__(
        self,
        dht: Directory,
        *,
        relays: Callable[[], Sequence[RelayInfo]],
        http: httpx.AsyncClient,
        run: str,
        limits: Mapping[str, int],
        lifetimes: Mapping[str, int],
        membership: Membership = everyone,
        settled: Membership = everyone,
        about: Subject = nobody,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self._dht, self._relays, self._http, self._clock = dht, relays, http, clock
        self._gate = RowGate(run=run, limits=limits)
        self._held = RowStore(lifetimes=lifetimes, membership=membership, settled=settled, about=about)
        self._chosen: list[RelayInfo] = []
        self._wanted: dict[str, float] = {}
        self._followers: dict[str, Follower] = {}
        self._posters: dict[str, Poster] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._reads: set[asyncio.Task[Mapping[str, Sequence[Envelope]]]] = set()
        self._writes: dict[tuple[str, str], tuple[int, asyncio.Task[None]]] = {}  # rows being written to the DHT
        self._left_open: set[asyncio.Task[None]] = set()  # writes whose caller was told to try again
        self._arrived: dict[tuple[str, str], int] = {}  # sequences that the DHT has since been seen to hold
        self._is_dht_poor = False
        self._ahead: dict[tuple[str, str], float] = {}  # rows that boards have but the DHT lacks, and since when
        self._compared = time.monotonic()
        self._dht_heard = time.monotonic()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Follow the boards of the keys being read, until cancelled."""
        swept = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._arrange(group)
                    if time.monotonic() - swept > SWEEP_SECONDS:
                        self._held.sweep(self._clock())
                        swept = time.monotonic()
                    self._woken.clear()
                    await _wait(self._woken, TURN_SECONDS)
        finally:
            for task in (*self._reads, *(writing for _, writing in self._writes.values())):
                task.cancel()

    # -- writing

    async def publish(self, row: Envelope) -> None:
        """Put a row on the DHT and on its boards. Returns once another peer of the DHT holds it. Otherwise raises
        TransportError, at once if a board holds the row meanwhile: the write to the DHT then continues, and the next
        try for the same row waits for it."""
        if self._arrived.pop(_place(row), None) == row.sequence:
            return  # since the last try
        on_boards = self._post(row)
        writing = self._write(row)
        patience = POOR_PATIENCE if self._is_dht_poor else DHT_PATIENCE
        await asyncio.wait({writing}, timeout=patience if on_boards else None)
        while not writing.done() and not any(_is_held(future) for future in on_boards):
            pending: set[asyncio.Future[Any]] = {writing, *(future for future in on_boards if not future.done())}
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            self._left_open.add(writing)
            raise TransportError("boards hold the row, no peer of the DHT is seen to do so yet")
        if writing.cancelled():
            raise TransportError("a newer row has taken its place")
        writing.result()

    def _write(self, row: Envelope) -> asyncio.Task[None]:
        """Start writing the row to the DHT, unless that is in progress. A write of an older row
        at its place is cancelled."""
        place = _place(row)
        before = self._writes.get(place)
        if before is not None and before[0] == row.sequence:
            return before[1]
        if before is not None:
            before[1].cancel()
        writing = asyncio.ensure_future(self._dht.publish(row))
        self._writes[place] = row.sequence, writing
        writing.add_done_callback(lambda task: self._note_written(row, task))
        while len(self._writes) > MAX_WRITES:
            eldest = next(iter(self._writes))
            self._writes.pop(eldest)[1].cancel()
        return writing

    def _note_written(self, row: Envelope, writing: asyncio.Task[None]) -> None:
        place = _place(row)
        if (held := self._writes.get(place)) is not None and held[1] is writing:
            del self._writes[place]
        has_arrived = not writing.cancelled() and writing.exception() is None
        if writing in self._left_open and has_arrived:
            self._arrived[place] = row.sequence
            if len(self._arrived) > MAX_ARRIVED:
                del self._arrived[next(iter(self._arrived))]
        self._left_open.discard(writing)

    def _post(self, row: Envelope) -> list[asyncio.Future[bool]]:
        posters = [self._posters[relay.node] for relay in self._boards_of(row.key) if relay.node in self._posters]
        data = to_bytes(row)
        return [poster.offer(data) for poster in posters]

    # -- reading

    async def read(self, keys: Sequence[str]) -> dict[str, list[Envelope]]:
        """Rows under each key, the newest of each subkey, from both. Raises TransportError when neither can be read."""
        self._want(keys)
        is_covered = all(self.is_covered(key) for key in keys)
        found = await self._read_dht(keys, is_covered=is_covered)
        now = self._clock()
        self._compare(found, now)
        return {key: newest([*found.get(key, ()), *(row for row, _ in self._held.rows(key, now))], now) for key in keys}

    def is_covered(self, key: str) -> bool:
        """Whether a board has recently responded about this key."""
        return any(
            self._followers[relay.node].covers(key) for relay in self._boards_of(key) if relay.node in self._followers
        )

    async def _read_dht(self, keys: Sequence[str], *, is_covered: bool) -> Mapping[str, Sequence[Envelope]]:
        if not is_covered:
            return await self._dht.read(keys)
        if len(self._reads) >= OPEN_AT_ONCE:
            self._note_silence("it does not answer in time")
            await asyncio.sleep(0)
            return {}
        reading = asyncio.ensure_future(self._dht.read(keys))
        self._reads.add(reading)
        reading.add_done_callback(self._close_read)
        try:
            patience = POOR_PATIENCE if self._is_dht_poor else DHT_PATIENCE
            done, _ = await asyncio.wait({reading}, timeout=patience)
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if not done:
            reading.add_done_callback(self._take_late)
        failure = reading.exception() if done else TransportError("it does not answer in time")
        if isinstance(failure, TransportError):
            self._note_silence(str(failure))
            return {}
        if failure is not None:
            raise failure
        self._dht_heard = time.monotonic()
        return reading.result()

    def _close_read(self, reading: asyncio.Task[Mapping[str, Sequence[Envelope]]]) -> None:
        self._reads.discard(reading)
        if not reading.cancelled():
            reading.exception()  # retrieved, since perhaps nobody waits for it any more

    def _take_late(self, reading: asyncio.Task[Mapping[str, Sequence[Envelope]]]) -> None:
        """Take a DHT response that arrived after its read returned: its rows are for the next read."""
        if reading.cancelled() or reading.exception() is not None:
            return
        self._dht_heard, now = time.monotonic(), self._clock()
        self._compare(reading.result(), now)
        for rows in reading.result().values():
            for row in rows:
                self._held.put(row, now)

    def _note_silence(self, why: str) -> None:
        if time.monotonic() - self._dht_heard > SILENT_SECONDS:  # one slow response is not silence
            self._note_dht(why)

    def _compare(self, found: Mapping[str, Sequence[Envelope]], clock: int) -> None:
        """Note rows that boards have but the DHT, asked for the same keys, lacks for long: the DHT
        then hides or loses rows."""
        now = time.monotonic()
        if not found or now - self._compared < COMPARE_SECONDS:
            return
        self._compared = now
        for key, rows in found.items():
            seen = {row.subkey: row.sequence for row in rows}
            for row, _ in self._held.rows(key, clock):
                if seen.get(row.subkey, -1) >= row.sequence:
                    self._ahead.pop((key, row.subkey), None)
                elif len(self._ahead) < MAX_AHEAD:
                    self._ahead.setdefault((key, row.subkey), now)
        self._ahead = {place: since for place, since in self._ahead.items() if place[0] in self._wanted}
        behind = sum(now - since > BEHIND_SECONDS for since in self._ahead.values())
        self._note_dht(f"{behind} rows are on boards only" if behind else None)

    def _note_dht(self, why: str | None) -> None:
        if (why is not None) != self._is_dht_poor:
            self._is_dht_poor = why is not None
            if why is None:
                log.info("boards.spared")
            else:
                log.warning("boards.relied_on", why=why)

    def _want(self, keys: Sequence[str]) -> None:
        now = time.monotonic()
        is_new = any(key not in self._wanted for key in keys)
        self._wanted.update(dict.fromkeys(keys, now))
        if is_new:
            self._woken.set()

    def _take(self, data: bytes) -> Outcome | None:
        """Take a row from a board. Returns None for a malformed one; a relay that passes
        those on is asked less often."""
        try:
            return self._held.put(self._gate.open(data), self._clock(), data)
        except Malformed:
            return None

    # -- boards

    def _boards_of(self, key: str) -> list[RelayInfo]:
        """The relays whose boards carry a key; registered ones come before free ids."""
        ranked = sorted(self._chosen, key=lambda relay: (relay.is_free, _rank(key, relay.node)))
        return ranked[:BOARDS]

    def _choose(self) -> list[RelayInfo]:
        """The relays whose boards carry rows at all: the same for every node that knows the same
        relays, in whatever order."""
        usable = [relay for relay in self._relays() if is_usable(relay.url)]
        return sorted(usable, key=lambda relay: (relay.is_free, _rank("", relay.node)))[:MAX_RELAYS]

    def _arrange(self, group: asyncio.TaskGroup) -> None:
        """Keep one poster and one follower for each relay chosen, and tell each follower its keys."""
        self._chosen = self._choose()
        now, relays = time.monotonic(), {relay.node: relay for relay in self._chosen}
        self._wanted = {key: seen for key, seen in self._wanted.items() if now - seen < WANTED_SECONDS}
        for node in [node for node, poster in self._posters.items() if relays.get(node) != poster.relay]:
            for task in self._tasks.pop(node):
                task.cancel()
            del self._posters[node], self._followers[node]
        for node, relay in relays.items():
            if node not in self._posters:
                self._posters[node], follower = Poster(relay, self._http), Follower(relay, self._http, self._take)
                follower.pause = lambda: BUSY_PAUSE if self._is_dht_poor else QUIET_PAUSE
                self._followers[node] = follower
                self._tasks[node] = [group.create_task(part.run()) for part in (self._posters[node], follower)]
        shares: dict[str, list[str]] = {node: [] for node in relays}
        for key in self._wanted:
            for relay in self._boards_of(key):
                shares[relay.node].append(key)
        for node, share in shares.items():
            self._followers[node].ask_for(share)


def _rank(key: str, node: str) -> bytes:
    return hashlib.sha256(f"board/1/{key}/{node}".encode()).digest()


def _place(row: Envelope) -> tuple[str, str]:
    return row.key, row.subkey


def _is_held(future: asyncio.Future[bool]) -> bool:
    return future.done() and not future.cancelled() and future.result()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
