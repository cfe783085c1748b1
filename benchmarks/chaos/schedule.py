"""Which fault happens when, derived entirely from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "kill p2pd", "fill the disk", "set the clock", "partition"]
GAP = (15.0, 20.0)
"""Seconds from one fault to the next."""
CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` is in seconds after the beginning. It lasts `seconds` (for a kill: until the restart)."""

    at: float
    kind: Kind
    victims: tuple[str, ...]
    seconds: float
    amount: float = 0.0  # seconds by which a clock is set forward, or back

    def __str__(self) -> str:
        what = f"{self.kind}: {', '.join(self.victims)}"
        return f"{what} by {self.amount:+.0f} s" if self.amount else what


def make_schedule(seed: int, *, seconds: float, roles: Mapping[str, Sequence[str]]) -> list[Fault]:
    """Faults for this many seconds. `roles` are the nodes' names by role. Each kind of fault, and the death of each
    role, comes up once before any comes up again."""
    rng = random.Random(seed)
    faults, at = list[Fault](), rng.uniform(0, 5)
    for what in _deal(rng, roles):
        if at >= seconds:
            return faults
        faults.append(_draw(rng, at, what, roles))
        at += rng.uniform(*GAP)
    raise AssertionError("the deck never ends")


def _deal(rng: random.Random, roles: Mapping[str, Sequence[str]]) -> Iterator[str]:
    deck = [*roles, CHAIN, "kill p2pd", "fill the disk", "set the clock", "partition"]
    while True:
        rng.shuffle(deck)
        yield from deck


def _draw(rng: random.Random, at: float, what: str, roles: Mapping[str, Sequence[str]]) -> Fault:
    everyone = [name for names in roles.values() for name in names]
    match what:
        case "kill p2pd":
            return Fault(at, "kill p2pd", (rng.choice(everyone),), 0.0)
        case "fill the disk":
            return Fault(at, "fill the disk", (rng.choice(everyone),), rng.uniform(8, 14))
        case "set the clock":
            return Fault(at, "set the clock", (rng.choice(everyone),), rng.uniform(8, 14), rng.choice((-1, 1)) * 40.0)
        case "partition":
            apart = [rng.choice(names) for role, names in roles.items() if role != "trainer"]
            return Fault(at, "partition", tuple(apart), rng.uniform(10, 14))
        case "chain":
            return Fault(at, "kill", (CHAIN,), rng.uniform(1, 5))
        case _:
            return Fault(at, "kill", (rng.choice(roles[what]),), rng.uniform(1, 5))
