"""Which rows share a forward pass: bins of bounded size with balanced loads, for any number of ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from roles.rl.batch import Row

Family = list[Row]
"""Rows with the same prompt, which they may share."""


def pack_rows(rows: Sequence[Row], *, capacity: int, multiple: int = 1, shares: bool = True) -> list[list[Row]]:
    """Distribute rows over bins of at most `capacity` tokens, or of the longest row's if that is more.

    Rows with the same prompt stay together, as far as they fit and no rank goes without, and count that prompt once.
    The number of bins is a multiple of `multiple` (ranks). Loads are balanced (the largest first, into the emptiest
    bin), and some bins are empty when there are fewer rows. Equal rows give equal bins, in which rows with the same
    prompt are neighbours.
    """
    families = _families(rows, shares=shares)
    total, most = sum(map(count_room, families)), max(capacity, *(row.length for row in rows))
    count = -(-max(1, min(len(rows), -(-total // most))) // multiple) * multiple
    while True:
        level = most if multiple == 1 else min(most, -(-total // count))  # balanced, because ranks wait for each other
        parts = [part for family in families for part in _split(family, level=level, most=most)]
        bins, loads = _spread(parts, count)
        if count >= len(rows) or max(loads) <= most:
            return [sorted(own) for own in bins]
        count += multiple


def part_rows(rows: Sequence[Row], *, multiple: int = 1) -> list[list[Row]]:
    """Put each row into its own bin, longest first, for a model whose rows cannot be packed. Empty bins are added so
    that the number is a multiple of `multiple` (ranks)."""
    bins = [[row] for row in sorted(rows, key=lambda row: (-row.length, row))]
    return bins + [[] for _ in range(-len(bins) % multiple)]


def count_room(family: Family) -> int:
    """Number of tokens in a forward pass over these rows, which share their prompt."""
    return len(family[0].prompt) + sum(len(row.completion) for row in family)


def _families(rows: Sequence[Row], *, shares: bool) -> list[Family]:
    if not shares:
        return [[row] for row in rows]
    return [list(family) for _, family in groupby(sorted(rows), key=attrgetter("prompt"))]


def _split(family: Family, *, level: int, most: int) -> list[Family]:
    """Parts of about `level` tokens, none above `most`; every single row is within `most`."""
    count = min(len(family), -(-count_room(family) // level))
    while True:
        parts = [family[start::count] for start in range(count)]
        if all(count_room(part) <= most for part in parts):
            return parts
        count += 1


def _spread(parts: Sequence[Family], count: int) -> tuple[list[list[Row]], list[int]]:
    bins: list[list[Row]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for part in sorted(parts, key=lambda part: (-count_room(part), part)):
        load, number = heapq.heappop(heap)
        bins[number] += part
        heapq.heappush(heap, (load + count_room(part), number))
    return bins, [load for load, _ in heap]
