"""Counts the nodes that wait for news here by the checkpoint they hold, which tells how far a run's nodes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager

OTHER = "other"
NONE = "none"


class Readers:
    """Questions held open now. What a reader says that it holds is its own word: only known versions are named."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def counted(self, held: str) -> Iterator[None]:
        """Count one reader that holds `held`, while the block lasts."""
        held = held[:64]
        self._open[held] += 1
        try:
            yield
        finally:
            self._open[held] -= 1
            if not self._open[held]:
                del self._open[held]

    def by_version(self, known: Container[str]) -> dict[str, int]:
        """Readers by the manifest digest they hold; those that hold none, or one that is not known here, apart."""
        counts: Counter[str] = Counter()
        for held, count in self._open.items():
            counts[held if held in known else OTHER if held else NONE] += count
        return dict(counts)
