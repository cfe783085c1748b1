"""What creating many node ids gains: prompts also depend on the beacon, which is unknown when an id is created."""

from __future__ import annotations

from dataclasses import dataclass

from dht.encoding import digest
from dht.identity import NodeKey
from roles.assignment import assigned_groups, compute_beacon, compute_seed


@dataclass(frozen=True, slots=True)
class Grinding:
    """Ids created, and the share of the first `groups` prompts that is easy: for any id, and for the best id by a
    guessed beacon, under that guess and under the true beacon."""

    ids: int
    easy: float
    best_by_guess: float
    best_in_truth: float


INDICES, PROBLEMS, EASY = 4, 1000, 250
"""Submissions examined, number of problems, and how many of them are easy: those with the lowest numbers."""


def grind(*, ids: int = 2000) -> Grinding:
    """Register the id with the most easy prompts under a guessed beacon; then apply
    the block that nobody could know."""
    nodes = [NodeKey(digest("grinding", number).encode()[:32]).node for number in range(ids)]
    guessed, true = (compute_beacon("ab" * 32, digest("block", name)) for name in ("guessed", "true"))
    shares = [_easy_share(node, guessed) for node in nodes]
    best = max(range(ids), key=shares.__getitem__)
    return Grinding(ids, EASY / PROBLEMS, shares[best], _easy_share(nodes[best], true))


def _easy_share(node: str, beacon: str) -> float:
    drawn = [
        group.problem
        for index in range(INDICES)
        for group in assigned_groups(
            compute_seed(run="cd" * 32, node=node, step=1, index=index, beacon=beacon),
            problems=PROBLEMS,
            groups=4,
            group_size=1,
        )
    ]
    return sum(problem < EASY for problem in drawn) / len(drawn)
