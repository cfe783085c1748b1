"""Server-sent events (WHATWG HTML, section 9.2): a story's rows as they change, or only its log.

An event's id is `<boot>-<number>`. A reader that reconnects with its last id gets what has changed since; one with an
id from an earlier start of the node gets everything again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from node.defaults import STATUS_LOOK_SECONDS, STATUS_SILENCE_SECONDS
from node.status.story import Story
from node.status.tables import Change

ROWS_AT_ONCE = 400
SILENCE = ": nothing new\n\n"
LOG_AT_FIRST = 300
"""Log rows sent to a new page; there may be ten thousand."""


class Streams:
    """The streams of one story. `refresh` is called before each look, and may add to the story."""

    def __init__(self, story: Story, *, refresh: Callable[[], None]) -> None:
        self._story, self._refresh, self._boot = story, refresh, secrets.token_hex(4)

    def number_of(self, last_id: str | None) -> int:
        """The last change that a reader has seen; 0 if it has seen nothing since this start."""
        boot, _, number = (last_id or "").partition("-")
        is_known = boot == self._boot and number.isdecimal() and len(number) < 16
        return min(int(number), self._story.tables.number) if is_known else 0

    async def rows(self, last_id: str | None) -> AsyncIterator[str]:
        """Every table, for a page. The first message says whether the page must discard what it holds."""
        number = self.number_of(last_id)
        yield "retry: 1000\n\n"
        yield self._frame(number, {"reset": number == 0, "limits": self._story.tables.limits, "rows": []})
        async for changes in self._changes(number, None):
            for part in _parts(changes):
                yield self._frame(
                    part[-1].number, {"rows": [[change.table, change.key, change.row] for change in part]}
                )
            if not changes:
                yield SILENCE
        yield "event: end\ndata: {}\n\n"

    async def log(self, last_id: str | None) -> AsyncIterator[str]:
        """One event per message, as JSON, for scripts."""
        async for changes in self._changes(self.number_of(last_id), ("log",)):
            for change in changes:
                yield self._frame(change.number, change.row)
            if not changes:
                yield SILENCE

    async def _changes(self, number: int, tables: tuple[str, ...] | None) -> AsyncIterator[list[Change]]:
        """Yield changes until the story is closed, and an empty list now and then to detect readers that have gone."""
        said = time.monotonic()
        while True:
            is_closed = self._story.is_closed  # read before the changes, so that the last ones are still sent
            self._refresh()
            newest = {} if number else {"log": LOG_AT_FIRST}
            changes = self._story.tables.since(number, tables=tables, newest=newest)
            if changes or time.monotonic() - said > STATUS_SILENCE_SECONDS:
                number, said = changes[-1].number if changes else number, time.monotonic()
                yield changes
            if is_closed:
                return
            await asyncio.sleep(STATUS_LOOK_SECONDS)

    def _frame(self, number: int, plain: Mapping[str, Any]) -> str:
        data = json.dumps({"now": round(time.time(), 3), **plain}, default=str, separators=(",", ":"))
        return f"id: {self._boot}-{number}\ndata: {data}\n\n"


def _parts(changes: Iterable[Change]) -> Iterator[list[Change]]:
    rest = iter(changes)
    while part := list(islice(rest, ROWS_AT_ONCE)):
        yield part
