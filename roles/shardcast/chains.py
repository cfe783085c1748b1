"""Chains of deltas from one checkpoint to another, computed from their end points and sizes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

LONGEST_CHAIN = 8
"""Maximum deltas in a chain. Each costs its reader a decoding pass; beyond this the shards are about as cheap."""


class Edge(Protocol):
    """A delta: the digests of two manifests, and its size in bytes."""

    @property
    def base(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def size(self) -> int: ...


E = TypeVar("E", bound=Edge)


def find_chain(edges: Collection[E], target: str, held: Collection[str], *, below: float) -> list[E]:
    """The cheapest chain of deltas from a held checkpoint to `target`, in the order to apply them. Empty when there is
    none with fewer than `below` bytes.

    `A -> B (5 bytes), B -> C (5), A -> C (12)`, A held, C wanted: `[A -> B, B -> C]`.
    """
    ways: dict[str, list[E]] = {target: []}
    for _ in range(LONGEST_CHAIN):
        for edge in edges:
            onward = ways.get(edge.target)
            way = None if onward is None else [edge, *onward]
            if way and len(way) <= LONGEST_CHAIN and _cost(way) < _cost(ways.get(edge.base), none=below):
                ways[edge.base] = way
    found = [way for base, way in ways.items() if base in held and way]
    return min(found, key=_cost, default=[])


def leading_on(edges: Collection[E], held: str) -> list[E]:
    """The deltas that a node holding a checkpoint can use, directly or through others, in the order given."""
    reached = {held}
    for _ in range(LONGEST_CHAIN):
        reached |= {edge.target for edge in edges if edge.base in reached}
    return [edge for edge in edges if edge.base in reached and edge.target != held]


def _cost(way: Sequence[Edge] | None, *, none: float = 0) -> float:
    return none if way is None else sum(edge.size for edge in way)
