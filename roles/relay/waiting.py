"""Requests held open until there is news, bounded in number and shared fairly among client addresses.

When there are too many, the oldest request of the address with the most is answered at once as things stand, and its
client asks again. So a flood of requests hurts only the addresses that send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Waiting:
    """The open requests of one kind, at most `most` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, dict[asyncio.Timeout, None]] = {}  # by address, oldest first
        self._total = 0

    def __len__(self) -> int:
        """How many requests wait now."""
        return self._total

    @asynccontextmanager
    async def held(self, address: str, seconds: float) -> AsyncIterator[None]:
        """Let the block wait for at most `seconds`. It ends without an error when they are
        over or its place is needed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as place:
                if seconds <= 0:
                    yield
                    return
                self._enter(address, place)
                try:
                    yield
                finally:
                    self._leave(address, place)

    def _enter(self, address: str, place: asyncio.Timeout) -> None:
        self._open.setdefault(address, {})[place] = None
        self._total += 1
        if self._total > self._most:
            busiest = max(self._open, key=lambda each: len(self._open[each]))
            eldest = next(iter(self._open[busiest]))
            self._leave(busiest, eldest)
            if not eldest.expired():
                eldest.reschedule(asyncio.get_running_loop().time())

    def _leave(self, address: str, place: asyncio.Timeout) -> None:
        of_address = self._open.get(address, {})
        if place not in of_address:
            return  # its place was already given up
        del of_address[place]
        self._total -= 1
        if not of_address:
            del self._open[address]
