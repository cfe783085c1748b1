"""Which token sequences were accepted before, and for whom: nobody earns twice for one completion."""

from __future__ import annotations

from collections import OrderedDict

from dht.encoding import digest

Place = tuple[str, int, int]
"""Node, step, index."""
MAX_SEQUENCES = 1_000_000
"""Completions remembered (about 200 bytes each); the oldest are forgotten first."""


class DuplicateIndex:
    """Completions of accepted submissions by the digest of their tokens. The first to be accepted keeps the sequence."""

    def __init__(self, limit: int = MAX_SEQUENCES) -> None:
        self._limit = limit
        self._owners: OrderedDict[str, Place] = OrderedDict()

    def owner(self, sequence: str) -> Place | None:
        """Who was credited for this sequence first."""
        return self._owners.get(sequence)

    def add(self, sequences: tuple[str, ...], place: Place) -> None:
        """Remember the sequences of an accepted submission; those that have an owner keep it."""
        for sequence in sequences:
            self._owners.setdefault(sequence, place)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)


def sequence_digest(prompt: tuple[int, ...], output: tuple[int, ...]) -> str:
    """Identity of one completion: 4 bytes a token, prompt and output apart."""
    parts = (b"".join(token.to_bytes(4, "big") for token in tokens) for tokens in (prompt, output))
    return digest("sequence/1", *parts)
