"""The complete measurements of one submission's audit, which the joined detector judges and is fitted to.

Knows nothing of thresholds. Contains only plain numbers, so that observations of any engine can be stored and shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roles.toploc.sampling_check import Margins
from roles.toploc.verify import ProofStatistics

DIGITS = 6  # decimals of a stored margin; float32 logits are no more precise


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One submission, completion by completion. `chunks[i]` are the statistics of completion i's proof, in
    order, and `margins[i]` (float64 `[T_i]`) the margins of its tokens. `chunk` is the number of tokens per
    chunk; the last may be shorter."""

    chunks: tuple[tuple[ProofStatistics, ...], ...]
    margins: tuple[Margins, ...]
    chunk: int = 32

    def __post_init__(self) -> None:
        if [-(-len(part) // self.chunk) for part in self.margins] != [len(parts) for parts in self.chunks]:
            raise ValueError("each completion needs a margin a token and the statistics of each of its chunks")

    @property
    def tokens(self) -> int:
        """Number of tokens observed."""
        return sum(map(len, self.margins))

    def to_plain(self) -> dict[str, Any]:
        """As JSON values. Zero margins, which are nearly all, are left out."""
        return {
            "chunk": self.chunk,
            "chunks": [
                [(each.exponent_mismatches, each.mantissa_mean, each.mantissa_median) for each in parts]
                for parts in self.chunks
            ],
            "tokens": [len(part) for part in self.margins],
            "margins": [_sparse(part) for part in self.margins],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Observation:
        """Inverse of `to_plain`. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(
            tuple(tuple(ProofStatistics(int(e), float(m), float(d)) for e, m, d in parts) for parts in plain["chunks"]),
            tuple(_dense(int(n), part) for n, part in zip(plain["tokens"], plain["margins"], strict=True)),
            int(plain["chunk"]),
        )


def _sparse(part: Margins) -> list[tuple[int, float | None]]:
    """Non-zero margins by index. JSON has no infinity, so a token off the support is stored as None."""
    where = np.flatnonzero(part)
    return [(int(i), round(float(part[i]), DIGITS) if np.isfinite(part[i]) else None) for i in where]


def _dense(tokens: int, entries: Sequence[tuple[int, float | None]]) -> Margins:
    part: Margins = np.zeros(tokens, dtype=np.float64)
    for index, value in zip((i for i, _ in entries), (v for _, v in entries), strict=True):
        part[index] = np.inf if value is None else value
    return part
