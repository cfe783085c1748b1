"""Rate limits on a node's transfers, so that bulk traffic does not saturate a household's line (NAT-08)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SMALLEST_PIECE, LARGEST_PIECE = 2**14, 2**21
PIECES_A_SECOND = 64


class Pace:
    """Bytes per second, shared by all transfers that use this object; `None` sets no limit. Thread-safe.

    A transfer that has moved some bytes waits for their time to pass before it moves more, so transfers take turns in
    the order they ask.
    """

    def __init__(self, rate: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._lock, self._free = threading.Lock(), clock()
        self.piece = (
            sys.maxsize if rate is None else int(min(max(SMALLEST_PIECE, rate / PIECES_A_SECOND), LARGEST_PIECE))
        )
        """Maximum bytes to move between two waits: even with a thousand transfers each moves some every few seconds."""

    def reserve(self, size: int) -> float:
        """Count `size` bytes. Returns the seconds to wait before moving more."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free = max(self._free, now) + size / self._rate
            return self._free - now

    def wait(self, size: int) -> None:
        """Count `size` bytes and wait for their time to pass; blocks the thread."""
        if (seconds := self.reserve(size)) > 0:
            time.sleep(seconds)

    async def pause(self, size: int) -> bool:
        """As `wait`, in the event loop. Returns whether it had to wait."""
        if (seconds := self.reserve(size)) > 0:
            await asyncio.sleep(seconds)
        return seconds > 0


@dataclass(frozen=True, slots=True)
class Line:
    """The rate limits of both directions, as seen from this machine."""

    up: Pace = field(default_factory=Pace)
    down: Pace = field(default_factory=Pace)


def line_of(upload_mbit: int, download_mbit: int) -> Line:
    """A line with these limits in Mbit/s; 0 means no limit."""
    up, down = (Pace(mbit * 1e6 / 8 or None) for mbit in (upload_mbit, download_mbit))
    return Line(up, down)
