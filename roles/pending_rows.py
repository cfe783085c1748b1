"""Rows that cannot be judged until something missing arrives: a preceding submission, or a block not seen yet."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container
from itertools import islice

from dht.envelope import Envelope

MAX_PENDING = 20_000
"""Maximum number of pending rows; the oldest are evicted first (they are still in the DHT)."""
MAX_OF_SIGNER = 256
"""Maximum rows of one signer that are pending, and that are examined per look: a flood of rows that never become valid
must cost others neither space nor time. The rest have their turn at the next look."""
MAX_AGAIN = 1024
"""Pending rows examined again per look, least recently examined first. Each takes about 50 us, during which the node
does nothing else, and a few registered keys suffice to have thousands pending."""


class PendingRows:
    """The pending rows, one for each place."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], Envelope] = OrderedDict()
        self._of_signer: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: Envelope) -> bool:
        held = self._rows.get(_place(row))
        return held is not None and held.sequence == row.sequence

    def keep(self, row: Envelope) -> None:
        """Keep a row pending at its place, unless too many of its signer are pending already."""
        if _place(row) not in self._rows:
            if self._of_signer[row.signer] >= MAX_OF_SIGNER:
                return  # it is offered again for as long as it is in the directory
            self._of_signer[row.signer] += 1
        self._rows[_place(row)] = row
        while len(self._rows) > MAX_PENDING:
            self.drop(next(iter(self._rows.values())))

    def drop(self, row: Envelope) -> None:
        """Drop the pending row at this row's place, if any."""
        held = self._rows.pop(_place(row), None)
        if held is not None:
            self._of_signer[held.signer] -= 1
            if not self._of_signer[held.signer]:
                del self._of_signer[held.signer]

    def keep_only(self, keys: Container[str]) -> None:
        """Drop rows under keys that are no longer read, because their step is over."""
        for row in [row for row in self._rows.values() if row.key not in keys]:
            self.drop(row)

    def take_turns(self, places: Container[tuple[str, str]]) -> list[Envelope]:
        """The rows whose turn it is, except those at these places."""
        turns = list(islice(self._rows.items(), MAX_AGAIN))
        for place, _ in turns:
            self._rows.move_to_end(place)
        return [row for place, row in turns if place not in places]


def _place(row: Envelope) -> tuple[str, str]:
    return row.key, row.subkey
