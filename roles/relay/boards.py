"""A relay's board: signed rows in order of arrival, which readers follow from wherever they left off.

It is a second way for the rows that the DHT carries, with the same gate and the same caps (`dht.rows`): a row is
judged by its own bytes, a flood evicts the flooder's own rows, and expired rows are gone. Serial numbers only
rise; a board that was started anew has a new name. Nothing is kept on disk, because writers republish every row
each third of its lifetime.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from dht.errors import Malformed
from dht.rows import Caps, Membership, Outcome, RowGate, RowStore, Subject, everyone, nobody
from roles.boards.wire import MAX_ANSWER, Batch

SWEEP_EVERY = 4096
"""Rows accepted between two sweeps of the index for rows that are gone."""


class Board:
    """One run's board at one relay. `clock` gives unix milliseconds; `membership`, `settled` and
    `about` are as in `RowStore`."""

    def __init__(
        self,
        *,
        run: str,
        limits: Mapping[str, int],
        lifetimes: Mapping[str, int],
        clock: Callable[[], int],
        membership: Membership = everyone,
        settled: Membership = everyone,
        about: Subject = nobody,
        caps: Caps | None = None,
    ) -> None:
        self.name = secrets.token_hex(8)
        self._gate = RowGate(run=run, limits=limits)
        self._rows = RowStore(lifetimes=lifetimes, membership=membership, settled=settled, about=about, caps=caps)
        self._clock = clock
        self._serial = 0
        self._serials: dict[str, dict[str, int]] = {}  # by key, then subkey; within a key the newest is last
        self._latest: dict[str, int] = {}  # the newest serial of each key
        self._followers: dict[str, set[asyncio.Event]] = {}  # by key

    @property
    def rows(self) -> int:
        """Number of rows held."""
        return len(self._rows)

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows held."""
        return self._rows.total_bytes

    def put(self, data: bytes) -> bool:
        """Store a row. Returns whether it is now held. Never raises, whatever a peer sends."""
        try:
            row = self._gate.open(data)
        except Malformed:
            return False
        outcome = self._rows.put(row, self._clock(), data)
        if outcome is Outcome.STORED:
            self._serial += 1
            serials = self._serials.setdefault(row.key, {})
            serials.pop(row.subkey, None)
            serials[row.subkey] = self._latest[row.key] = self._serial
            if self._serial % SWEEP_EVERY == 0:
                self._sweep()
            for told in self._followers.get(row.key, ()):
                told.set()
        return outcome.kept

    def read(self, keys: Sequence[str], *, board: str, since: int) -> Batch:
        """Rows of these keys that came after a serial number, oldest first, as many as fit in a response. A reader that
        comes from another board, or from this one before it was started anew, gets everything."""
        since = since if board == self.name else 0
        found = sorted(row for key in dict.fromkeys(keys) for row in self._newer(key, since))
        taken, size, upto = list[bytes](), 0, self._serial
        for serial, data in found:
            if taken and size + len(data) > MAX_ANSWER:
                upto = serial - 1
                break
            taken.append(data)
            size += len(data)
        return Batch(self.name, upto, tuple(taken))

    def weight(self, keys: Sequence[str], *, board: str, since: int) -> int:
        """Upper bound on the rows that `read` scans."""
        since = since if board == self.name else 0
        return sum(len(self._serials[key]) for key in dict.fromkeys(keys) if self._latest.get(key, 0) > since)

    async def follow(self, keys: Sequence[str], *, board: str, since: int, seconds: float) -> Batch:
        """As `read`, but wait up to `seconds` until there is something. A row wakes those that follow its key."""
        until, told = time.monotonic() + seconds, asyncio.Event()
        with self._following(frozenset(keys), told):
            while True:
                told.clear()
                if board != self.name or any(self._latest.get(key, 0) > since for key in keys):
                    batch = self.read(keys, board=board, since=since)
                else:
                    batch = Batch(self.name, self._serial, ())
                left = until - time.monotonic()
                if batch.rows or left <= 0:
                    return batch
                board, since = self.name, batch.upto
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await told.wait()

    @contextmanager
    def _following(self, keys: Collection[str], told: asyncio.Event) -> Iterator[None]:
        for key in keys:
            self._followers.setdefault(key, set()).add(told)
        try:
            yield
        finally:
            for key in keys:
                self._followers[key].discard(told)
                if not self._followers[key]:
                    del self._followers[key]

    def _newer(self, key: str, since: int) -> Iterator[tuple[int, bytes]]:
        if self._latest.get(key, 0) <= since:
            return
        held = self._rows.held(key, self._clock())
        for subkey, serial in reversed(self._serials[key].items()):
            if serial <= since:
                return
            if subkey in held:
                yield serial, held[subkey][1]

    def _sweep(self) -> None:
        now = self._clock()
        alive = {key: {row.subkey for row, _ in self._rows.rows(key, now)} for key in self._rows.keys(now)}
        self._serials = {
            key: {subkey: serial for subkey, serial in serials.items() if subkey in alive[key]}
            for key, serials in self._serials.items()
            if key in alive
        }
        self._latest = {key: serial for key, serial in self._latest.items() if key in alive}
