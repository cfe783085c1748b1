"""Rows that change, in tables of bounded size. Every change has a number, so that a reader
can ask only for what is new.

A reader that was away gets each row once, in its current state, however often it changed, so no history is kept for it.
Rows are never modified in place. Safe to write from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A row in its state since change `number`."""

    number: int
    table: str
    key: str
    row: Row


class Tables:
    """Tables by name. Each keeps the most recently changed rows, up to its limit."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = dict(limits)
        self.number = 0
        self._rows: dict[str, OrderedDict[str, Change]] = {name: OrderedDict() for name in limits}
        self._lock = threading.RLock()

    def put(self, table: str, key: str, row: Row) -> None:
        """Set a row. Setting an equal row is not a change."""
        with self._lock:
            rows = self._rows[table]
            held = rows.get(key)
            if held is not None and held.row == row:
                return
            self.number += 1
            rows[key] = Change(self.number, table, key, row)
            rows.move_to_end(key)
            if len(rows) > self.limits[table]:
                rows.popitem(last=False)

    def update(self, table: str, key: str, **fields: Any) -> Row:
        """Set some fields of a row, creating it if necessary. Returns the row."""
        with self._lock:
            row = {**self.get(table, key), **fields}
            self.put(table, key, row)
            return row

    def get(self, table: str, key: str) -> Row:
        """A row; an empty one when it does not exist."""
        held = self._rows[table].get(key)
        return held.row if held else {}

    def rows(self, table: str) -> list[tuple[str, Row]]:
        """All rows of a table with their keys, the most recently changed last."""
        with self._lock:
            return [(key, change.row) for key, change in self._rows[table].items()]

    def since(
        self, number: int, *, tables: Collection[str] | None = None, newest: Mapping[str, int] | None = None
    ) -> list[Change]:
        """Changes after `number`, in order. For a table named in `newest`, at most that many of its newest."""
        found: list[Change] = []
        with self._lock:
            for name in self._rows if tables is None else tables:
                recent = islice(reversed(self._rows[name].values()), (newest or {}).get(name))
                found += takewhile(lambda change: change.number > number, recent)
        return sorted(found, key=lambda change: change.number)
