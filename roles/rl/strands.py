"""How rows are laid out in a pack: rows with the same prompt hold it once, and their completions branch off after it.

All completions of a group have the same prompt, so a pass over a group of eight computes it once instead of eight
times. Each row still attends only to itself, at the positions it would have on its own. Knows token ids, but
nothing of tensors or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

Tokens = tuple[int, ...]


class Place(NamedTuple):
    """Position in the pack of a row's first completion token, and of the token before it."""

    first: int
    before: int


@dataclass(frozen=True, slots=True)
class Layout:
    """T tokens in S strands, and the place of each row. `bounds` are the S + 1 boundaries;
    `stems` what each continues."""

    tokens: Tokens
    positions: Tokens
    bounds: Tokens
    stems: tuple[int | None, ...]
    rows: tuple[Place, ...]


class _Strand(NamedTuple):
    tokens: Tokens
    position: int  # of its first token, in the row
    stem: int | None


def lay_out(rows: Sequence[tuple[Tokens, Tokens]], *, shares: bool) -> Layout:
    """Lay out rows of (prompt, completion). Neighbours with the same prompt share it if `shares`.

    `(5, 6) (7,)` and `(5, 6) (8, 9)` give the strands `5 6`, `7`, `8 9`, of which the last two continue the first.
    """
    strands: list[_Strand] = []
    where: list[tuple[int, int, int]] = []  # by row: its last strand, the number of prompt tokens in that, its stem
    for prompt, family in groupby(rows, key=itemgetter(0)):
        completions = [completion for _, completion in family]
        if not shares or len(completions) == 1:
            for completion in completions:
                where.append((len(strands), len(prompt), len(strands)))
                strands.append(_Strand((*prompt, *completion), 0, None))
            continue
        stem = len(strands)
        strands.append(_Strand(prompt, 0, None))
        for completion in completions:
            where.append((len(strands), 0, stem))
            strands.append(_Strand(completion, len(prompt), stem))
    bounds = tuple(accumulate((len(strand.tokens) for strand in strands), initial=0))
    return Layout(
        tokens=tuple(token for strand in strands for token in strand.tokens),
        positions=tuple(strand.position + offset for strand in strands for offset in range(len(strand.tokens))),
        bounds=bounds,
        stems=tuple(strand.stem for strand in strands),
        rows=tuple(
            Place(bounds[own] + skipped, bounds[own] + skipped - 1 if own == stem else bounds[stem + 1] - 1)
            for own, skipped, stem in where
        ),
    )
