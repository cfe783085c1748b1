"""Counts the nodes that wait for news here by the checkpoint they hold, which shows how far a run's nodes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager

OTHER = "other"
NONE = "none"


class Readers:
    """Requests held open now. The checkpoint a reader claims to hold is unverified, so only
    known versions are named."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def counted(self, held: str) -> Iterator[None]:
        """Count one reader that holds `held` for the duration of the block."""
        held = held[:64]
        self._open[held] += 1
        try:
            yield
        finally:
            self._open[held] -= 1
            if not self._open[held]:
                del self._open[held]

    def by_version(self, known: Container[str]) -> dict[str, int]:
        """Readers by the manifest digest they hold. Those with none, or with one not known
        here, are counted separately."""
        counts: Counter[str] = Counter()
        for held, count in self._open.items():
            counts[held if held in known else OTHER if held else NONE] += count
        return dict(counts)
