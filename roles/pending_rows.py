"""Rows that wait for something that is missing before they can be judged: a gap before them, a block not seen yet."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container
from itertools import islice

from dht.envelope import Envelope

MAX_PENDING = 20_000
"""Rows waiting for something; the oldest are forgotten first (they are still in the DHT)."""
MAX_OF_SIGNER = 256
"""Rows of one signer that wait, and that are looked at in one look: a flood of rows that never become valid must cost
nobody else, neither room nor time. The others have their turn at the next look."""
MAX_AGAIN = 1024
"""Rows that wait and are looked at again in one look, those first that were not for longest: each takes some 50 us, in
which nothing else of the node moves, and whoever registers a few keys can have thousands wait."""


class PendingRows:
    """The rows that wait, one for each place."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], Envelope] = OrderedDict()
        self._of_signer: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: Envelope) -> bool:
        held = self._rows.get(_place(row))
        return held is not None and held.sequence == row.sequence

    def keep(self, row: Envelope) -> None:
        """Have a row wait in its place, unless too many of its signer wait already."""
        if _place(row) not in self._rows:
            if self._of_signer[row.signer] >= MAX_OF_SIGNER:
                return  # it is offered again as long as it stands in the directory
            self._of_signer[row.signer] += 1
        self._rows[_place(row)] = row
        while len(self._rows) > MAX_PENDING:
            self.drop(next(iter(self._rows.values())))

    def drop(self, row: Envelope) -> None:
        """No row waits in this one's place any more."""
        held = self._rows.pop(_place(row), None)
        if held is not None:
            self._of_signer[held.signer] -= 1
            if not self._of_signer[held.signer]:
                del self._of_signer[held.signer]

    def keep_only(self, keys: Container[str]) -> None:
        """Drop rows under keys that are no longer read: their step is over."""
        for row in [row for row in self._rows.values() if row.key not in keys]:
            self.drop(row)

    def take_turns(self, places: Container[tuple[str, str]]) -> list[Envelope]:
        """Those whose turn it is, but not in these places."""
        turns = list(islice(self._rows.items(), MAX_AGAIN))
        for place, _ in turns:
            self._rows.move_to_end(place)
        return [row for place, row in turns if place not in places]


def _place(row: Envelope) -> tuple[str, str]:
    return row.key, row.subkey
