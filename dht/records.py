"""The writer's side of the directory: signs rows, republishes them, and never reuses a sequence number.

Knows no message kinds: lifetimes and sizes come from the caller.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from dht.disk import write_durably
from dht.envelope import Envelope, seal
from dht.errors import NO_ROOM, IdentityError, TransportError
from dht.identity import NodeKey

SEQUENCE_BLOCK = 10_000
"""Sequence numbers reserved at a time. They follow the clock in milliseconds, so this means
at most one fsync in ten seconds."""
SET_BACK_MS = 15_000
"""An expiration further ahead of its normal value than this was set by a clock that has since been corrected."""
RETRY_SECONDS = (1, 2, 4, 8, 15)
MAX_ROWS = 20_000
_AT_ONCE = 4
_TICK = 0.25  # seconds

log = structlog.get_logger()


def unix_ms() -> int:
    """Now, in unix milliseconds."""
    return time.time_ns() // 1_000_000


class DirectoryPort(Protocol):
    """Signed rows on a DHT."""

    async def publish(self, row: Envelope) -> None:
        """Store a row; returns once another peer is seen to hold it. Raises TransportError."""

    async def read(self, keys: Sequence[str]) -> dict[str, list[Envelope]]:
        """Verified, unexpired rows under each key; an empty list means unknown. Raises TransportError."""


class SequenceCounter:
    """Increasing numbers close to the clock's milliseconds, never reused, not even after a restart."""

    def __init__(self, path: Path | None, clock: Callable[[], int]) -> None:
        self._path = path / "sequence.json" if path is not None and path.is_dir() else path
        self._clock = clock
        self._reserved = self._load()
        self.last = self._reserved

    def next(self) -> int:
        """`max(last + 1, now)`, reserved on disk before it is used."""
        self.last = max(self.last + 1, self._clock())
        if self.last > self._reserved:
            self._reserve(self.last + SEQUENCE_BLOCK)
        return self.last

    def _load(self) -> int:
        if self._path is None or not self._path.exists():
            return 0
        try:
            return int(json.loads(self._path.read_text())["reserved"])
        except (OSError, ValueError, KeyError, TypeError):
            # Losing the reservation only leaves a gap: the clock has passed every number issued more than a block ago.
            log.warning("sequence.unreadable", path=str(self._path))
            return self._clock() + SEQUENCE_BLOCK

    def _reserve(self, ceiling: int) -> None:
        """Reserve numbers up to `ceiling` on disk. On a full disk nothing is reserved, and the next number tries again.
        Raises IdentityError for any other failure."""
        try:
            if self._path is not None:
                write_durably(self._path, json.dumps({"reserved": ceiling}).encode())
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise IdentityError(f"cannot write {self._path}: {error.strerror}; check space and rights") from error
            # Numbers follow the clock, which a restart does not set back. What cannot be reserved now is reserved with
            # the next.
            log.warning("sequence.unreserved", why=error.strerror)
        else:
            self._reserved = ceiling


@dataclass(slots=True)
class _Kept:
    """A row being kept published. Times are unix milliseconds."""

    row: Envelope
    lifetime: int  # seconds
    until: int | None
    due: int  # next attempt
    failures: int = 0
    is_confirmed: bool = False


class Publisher:
    """A node's own rows. `publish` signs and tries once; `run` retries, and republishes every third of a lifetime."""

    def __init__(
        self,
        key: NodeKey,
        directory: DirectoryPort,
        *,
        run: str,
        state: Path | None,
        clock: Callable[[], int] = unix_ms,
    ) -> None:
        self._key = key
        self._directory = directory
        self._run = run
        self._clock = clock
        self._sequence = SequenceCounter(state, clock)
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._expirations: dict[tuple[str, str], tuple[int, int]] = {}  # value: expiration, and lifetime in seconds
        self._wake = asyncio.Event()

    @property
    def node(self) -> str:
        """Node id of the signer of these rows."""
        return self._key.node

    @property
    def unconfirmed(self) -> int:
        """Rows not yet read back from another peer."""
        return sum(not kept.is_confirmed for kept in self._kept.values())

    def is_confirmed(self, record_key: str, subkey: str) -> bool:
        """Whether our row has been read back from another peer since it was last signed."""
        kept = self._kept.get((record_key, subkey))
        return kept is not None and kept.is_confirmed

    async def publish(
        self,
        *,
        kind: str,
        record_key: str,
        subkey: str,
        payload: bytes,
        lifetime: int,
        hint: bytes = b"",
        keep_seconds: int | None = None,
    ) -> Envelope:
        """Sign a row, try once to publish it, and keep it published until
        `keep_seconds` have passed (None: indefinitely).

        `lifetime` is in seconds. Returns whether or not the attempt succeeded; `run` retries.
        """
        row = self._seal(kind, record_key, subkey, payload, lifetime, hint)
        now = self._clock()
        until = None if keep_seconds is None else now + keep_seconds * 1000
        kept = _Kept(row, lifetime, until, due=now)
        self._remember(kept)
        await self._attempt(kept)
        return row

    def withdraw(self, record_key: str, subkey: str) -> None:
        """Stop publishing a row. Copies held by peers expire by themselves."""
        self._kept.pop((record_key, subkey), None)

    def publish_all_again(self) -> None:
        """Make every row due at once, since the network may have lost them (`run` publishes them)."""
        now = self._clock()
        for kept in self._kept.values():
            kept.due, kept.is_confirmed = now, False
        self._wake.set()

    async def run(self) -> None:
        """Keep the rows published until cancelled."""
        while True:
            await self.publish_due()
            self._wake.clear()
            try:
                async with asyncio.timeout(_TICK):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def publish_due(self) -> int:
        """One pass: publish what is due now. Returns how many rows were tried."""
        now = self._clock()
        for place, kept in list(self._kept.items()):
            if kept.until is not None and now >= kept.until:
                del self._kept[place]
        # A row due later than its next third was scheduled by a clock that has since been set back.
        kept_rows = self._kept.values()
        due = [kept for kept in kept_rows if not now < kept.due <= now + kept.lifetime * 1000 // 3]
        due.sort(key=lambda kept: kept.due)
        for start in range(0, len(due), _AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for kept in due[start : start + _AT_ONCE]:
                    group.create_task(self._renew(kept))
        return len(due)

    async def _renew(self, kept: _Kept) -> None:
        if self._kept.get((kept.row.key, kept.row.subkey)) is not kept:
            return  # withdrawn or replaced meanwhile
        left = kept.row.expiration - self._clock()
        if kept.is_confirmed or not kept.lifetime * 1000 // 3 * 2 < left <= kept.lifetime * 1000 + SET_BACK_MS:
            row = kept.row
            kept.row = self._seal(row.kind, row.key, row.subkey, row.payload, kept.lifetime, row.hint)
            kept.is_confirmed = False
        await self._attempt(kept)

    async def _attempt(self, kept: _Kept) -> None:
        third = kept.lifetime * 1000 // 3
        kept.due = self._clock() + third  # so that a concurrent pass of `run` does not try it too
        try:
            await self._directory.publish(kept.row)
        except TransportError as error:
            wait = RETRY_SECONDS[min(kept.failures, len(RETRY_SECONDS) - 1)] * 1000
            kept.failures += 1
            kept.due = self._clock() + min(wait, third)
            log.info("row.unconfirmed", kind=kept.row.kind, key=kept.row.key[-64:], cause=str(error))
        else:
            kept.failures, kept.is_confirmed = 0, True
            kept.due = self._clock() + third

    def _seal(self, kind: str, key: str, subkey: str, payload: bytes, lifetime: int, hint: bytes) -> Envelope:
        natural = self._clock() + lifetime * 1000
        before, lived = self._expirations.get((key, subkey), (0, 0))
        expiration = max(natural, before + 1)
        if expiration > natural + max(0, lived - lifetime) * 1000 + SET_BACK_MS:
            expiration = natural  # peers refuse a row that lives much longer; only the sequence must rise
        row = seal(
            self._key,
            run=self._run,
            kind=kind,
            record_key=key,
            subkey=subkey,
            sequence=self._sequence.next(),
            expiration=expiration,
            payload=payload,
            hint=hint,
        )
        self._expirations.pop((key, subkey), None)
        self._expirations[key, subkey] = (expiration, lifetime)
        if len(self._expirations) > 2 * MAX_ROWS:
            del self._expirations[next(iter(self._expirations))]
        return row

    def _remember(self, kept: _Kept) -> None:
        place = (kept.row.key, kept.row.subkey)
        if place not in self._kept and len(self._kept) >= MAX_ROWS:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            log.warning("row.forgotten", key=oldest[0][-64:], rows=MAX_ROWS)
        self._kept[place] = kept
