"""When a validator began to wait for something, or last did something. If the clock is set
back, each wait starts anew."""

from __future__ import annotations

from collections.abc import Hashable

from roles.ports import Clock


class Waits:
    """Start times in milliseconds, by what is awaited or done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, int] = {}

    def waited(self, what: Hashable) -> int:
        """Milliseconds since this was first asked."""
        now = self._clock()
        since = self._since[what] = min(now, self._since.get(what, now))
        return now - since

    def is_time(self, what: Hashable, every: int) -> bool:
        """Whether this was not done within the last `every` milliseconds; if so, it counts as done now."""
        now, last = self._clock(), self._since.get(what)
        if last is not None and 0 <= now - last < every:
            return False
        self._since[what] = now
        return True

    def clear(self) -> None:
        """Forget every wait."""
        self._since.clear()
