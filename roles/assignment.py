"""Prompts and sampling seeds are derived from a digest that a worker cannot foresee, so it cannot choose them. Pure.

Draws use SHA-256, never `random` or `hash()`, and are specified byte for byte (docs/protocol.md), so a validator can
recompute them in any language.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from dht.encoding import digest, pack

TWO_64 = 2**64
TWO_63 = 2**63


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """One prompt of a submission, a sampling seed (63 bits) for each of its completions and, where the run sets length
    targets, the number of tokens they should have."""

    group: int
    problem: int
    seeds: tuple[int, ...]
    target: int | None = None


def compute_beacon(manifest: str, block_hash: str) -> str:
    """Beacon of a node in a step: digest of manifest max(0, s-1-async_level) and the hash of
    its registration block + k."""
    return digest("beacon/1", manifest, block_hash)


def compute_seed(*, run: str, node: str, step: int, index: int, beacon: str) -> str:
    """The seed of one index, from which everything else is drawn."""
    return digest("assignment/1", run, node, step, index, beacon)


def draw(seed: str, label: str, number: int, below: int = TWO_64) -> int:
    """Uniform integer below `below`: the first 8 bytes, big-endian, of SHA-256 over ("draw/1", seed, label, number).

    While the value falls in the uneven tail, a retry count is appended and the hash repeated
    (rejection sampling, no bias)."""
    tail = TWO_64 - TWO_64 % below
    retry = 0
    while True:
        parts = ("draw/1", seed, label, number) if retry == 0 else ("draw/1", seed, label, number, retry)
        value = int.from_bytes(hashlib.sha256(pack(*parts)).digest()[:8], "big")
        if value < tail:
            return value % below
        retry += 1


def is_admitted(seed: str, share: int) -> bool:
    """Whether the head's share (of 2**64) admits the index with this seed."""
    return draw(seed, "admit", 0) < share


def assigned_groups(
    seed: str, *, problems: int, groups: int, group_size: int, targets: Sequence[int] = ()
) -> tuple[GroupAssignment, ...]:
    """Prompts (with replacement, below `problems`), sampling seeds and length targets of one index."""
    return tuple(
        GroupAssignment(
            group=group,
            problem=draw(seed, "prompt", group, problems),
            seeds=tuple(draw(seed, "sample", group * group_size + i, TWO_63) for i in range(group_size)),
            target=targets[draw(seed, "length", group, len(targets))] if targets else None,
        )
        for group in range(groups)
    )


def policy_window(step: int, async_level: int) -> range:
    """Checkpoints that step `step` may use: max(0, s-1-async_level) .. s-1."""
    return range(max(0, step - 1 - async_level), step)


def beacon_step(step: int, async_level: int) -> int:
    """The checkpoint whose manifest feeds the beacon of a step."""
    return max(0, step - 1 - async_level)
