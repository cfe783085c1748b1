"""A directory without a network. Several nodes share one store in memory, with the same
validation and limits as the real one.

For simulations and tests. Each node's link can drop, delay or reorder rows, reproducibly from a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dht.envelope import Envelope, to_bytes
from dht.errors import Malformed, TransportError
from dht.records import unix_ms
from dht.rows import Outcome, RowGate, RowStore, newest


class FakeClock:
    """A clock in unix milliseconds that moves only when advanced."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += int(seconds * 1000)


class MemoryNetwork:
    """State shared by all directories of one network. `clock` gives unix milliseconds."""

    def __init__(
        self,
        *,
        run: str,
        limits: Mapping[str, int],
        lifetimes: Mapping[str, int],
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self.clock = clock
        self.gate = RowGate(run=run, limits=limits)
        self.store = RowStore(lifetimes=lifetimes)

    def take(self, data: bytes) -> Outcome:
        """Process a received row as a peer would. Raises Malformed."""
        return self.store.put(self.gate.open(data), self.clock(), data)


@dataclass(slots=True)
class Faults:
    """Faults of one node's link. Rates are probabilities; `delay_ms` is how long a row stays invisible."""

    is_down: bool = False
    drop_rate: float = 0.0
    delay_ms: int = 0
    reorder: bool = False
    seed: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)


class MemoryDirectory:
    """One node's view of a MemoryNetwork, with the same `publish` and `read` as the real directory."""

    def __init__(self, network: MemoryNetwork, *, faults: Faults | None = None) -> None:
        self.network = network
        self.faults = faults or Faults()
        self._held_back: list[tuple[int, bytes]] = []

    async def publish(self, row: Envelope) -> None:
        """Store a row. Raises TransportError when the link is down, or the row was lost, delayed or refused."""
        await asyncio.sleep(0)
        self._deliver()
        faults = self.faults
        if faults.is_down or faults.random.random() < faults.drop_rate:
            raise TransportError("no peer answered")
        if faults.delay_ms:
            self._held_back.append((self.network.clock() + faults.delay_ms, to_bytes(row)))
            raise TransportError("no other peer is seen to hold the row yet")
        self._hand_over([to_bytes(row)])

    async def read(self, keys: Sequence[str]) -> dict[str, list[Envelope]]:
        """Rows under each key, newest of each subkey. Raises TransportError when the link is down."""
        await asyncio.sleep(0)
        self._deliver()
        if self.faults.is_down:
            raise TransportError("no peer answered")
        return {key: self._rows(key) for key in keys}

    def _rows(self, key: str) -> list[Envelope]:
        now = self.network.clock()
        rows = newest((row for row, _ in self.network.store.rows(key, now)), now)
        rows = [row for row in rows if self.faults.random.random() >= self.faults.drop_rate]
        if self.faults.reorder:
            self.faults.random.shuffle(rows)
        return rows

    def _hand_over(self, items: list[bytes]) -> None:
        try:
            outcomes = [self.network.take(data) for data in items]
        except Malformed as error:
            raise TransportError(f"peers refused the row: {error}") from error
        refused = [outcome.value for outcome in outcomes if not outcome.kept]
        if refused:
            raise TransportError(f"peers refused the row: {refused[0]}")

    def _deliver(self) -> None:
        """Deliver the rows whose delay has passed, shuffled if the faults say so."""
        now = self.network.clock()
        ready = [data for due, data in self._held_back if due <= now]
        self._held_back = [held for held in self._held_back if held[0] > now]
        if self.faults.reorder:
            self.faults.random.shuffle(ready)
        for data in ready:
            self.network.take(data)
