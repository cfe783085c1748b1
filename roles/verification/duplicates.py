"""Which completions were accepted before, and from whom. Nobody earns twice for one, nor for one
with a few tokens changed.

A completion is identified by a *sketch* (bottom-k, Broder 1997): of all its runs of 12 neighbouring tokens, the 8 with
the smallest digests. Changing, inserting or deleting one token breaks at most 12 runs, so the sketches of a copy and
its original share most of their entries; those of unrelated completions share none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

RUN = 12
"""Tokens in a run. A shorter completion is a single run."""
KEPT = 8
Place = tuple[str, int, int]
"""Node, step, index."""
MAX_RUNS = 1_000_000
"""Runs remembered (125,000 completions, about 150 bytes a run); the oldest are evicted first."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Runs by digest (16 hexadecimal digits), each with the index of its first token."""

    runs: dict[str, int]

    @property
    def text(self) -> str:
        """The sketch as stored on disk."""
        return "".join(sorted(self.runs))


def sketch_of(tokens: Sequence[int], secret: bytes = b"") -> Sketch:
    """The sketch of one completion, whatever its prompt; of equal runs the first counts. Without the secret (at most 64
    bytes) nobody can tell which runs are kept, so a copier has to break them all."""
    data = np.asarray(tokens, dtype="<i4").tobytes()
    starts = range(max(1, len(tokens) - RUN + 1))
    runs: dict[str, int] = {}
    for start in starts:
        run = data[4 * start : 4 * (start + RUN)]
        runs.setdefault(blake2b(run, digest_size=8, key=secret).hexdigest(), start)
    return Sketch(dict(sorted(runs.items())[:KEPT]))


class DuplicateIndex:
    """Runs of accepted completions. A run belongs to the first completion accepted with it."""

    def __init__(self, limit: int = MAX_RUNS) -> None:
        self._limit = limit
        self._owners: OrderedDict[str, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, run: str) -> Place | None:
        """The place (node, step, index) that this run of tokens was first credited to."""
        return self._owners.get(run)

    def add(self, sketches: Iterable[str], place: Place) -> None:
        """Add the completions of an accepted submission, by their sketches' texts. Runs that have an owner keep it."""
        for text in sketches:
            for start in range(0, len(text), 16):
                self._owners.setdefault(text[start : start + 16], place)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)
