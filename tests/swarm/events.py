"""Structured events of a simulated swarm, kept in order and awaited by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

Event = dict[str, Any]


class EventLog:
    """Every event of every node; `node` and `role` are bound by the node's task."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self._began = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    @contextmanager
    def capture(self) -> Iterator[EventLog]:
        """Capture structlog's events until the block is left."""
        self._loop = asyncio.get_running_loop()
        before = structlog.get_config()
        structlog.configure(
            processors=[structlog.contextvars.merge_contextvars, self._take], cache_logger_on_first_use=False
        )
        try:
            yield self
        finally:
            self._loop = None
            structlog.configure(**before)

    def _take(self, logger: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.rows.append({"level": level, "at": round(time.monotonic() - self._began, 3), **event})
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)
        raise structlog.DropEvent

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, name: str, **fields: object) -> list[Event]:
        """Events with that name and those fields, in order."""
        return [row for row in list(self.rows) if row["event"] == name and fields.items() <= row.items()]

    def position(self, name: str, **fields: object) -> int:
        """Index of the first such event among all."""
        return self.rows.index(self.find(name, **fields)[0])

    async def wait(self, name: str, *, count: int = 1, timeout: float = 60.0, **fields: object) -> Event:
        """Wait for the `count`-th such event. Raises TimeoutError naming what did happen."""
        try:
            async with asyncio.timeout(timeout):
                while len(found := self.find(name, **fields)) < count:
                    await self._changed.wait()
        except TimeoutError:
            tail = "\n".join(str(row) for row in [r for r in self.rows if r["level"] != "debug"][-40:])
            raise TimeoutError(f"no {name} {fields} within {timeout} s; the last events:\n{tail}") from None
        return found[count - 1]
