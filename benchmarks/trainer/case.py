"""The batch that both sides train on, as a file, and the results that each reports."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

LEARNING_RATE, BETAS, MAX_GRAD_NORM = 1e-5, (0.9, 0.999), 0.1
EPS, DELTA = 0.2, 4.0
GROUP = 8
"""Completions per prompt, as in GRPO."""
SPREAD = 0.15
"""Standard deviation of the noise between old and current log-probabilities; large
enough that some ratios are clipped."""


@dataclass(frozen=True, slots=True)
class Line:
    """One completion."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float
    old: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Completions, `rows` of which make up one of the peer's passes. `steps` updates are made on all of them."""

    model: str
    lines: tuple[Line, ...]
    rows: int
    steps: int
    threads: int

    @property
    def longest(self) -> int:
        """Tokens of the longest line."""
        return max(len(line.prompt) + len(line.completion) for line in self.lines)

    def save(self, path: Path) -> None:
        """Write the case for the other process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Case:
        """What `save` wrote."""
        plain = json.loads(path.read_text())
        lines = tuple(
            Line(tuple(line["prompt"]), tuple(line["completion"]), line["advantage"], tuple(line["old"]))
            for line in plain.pop("lines")
        )
        return cls(lines=lines, **plain)


def draw_lines(*, count: int, vocabulary: int, longest: int, seed: int = 0) -> tuple[Line, ...]:
    """Completions with lengths distributed like rollouts': lognormal, with a median of a quarter of the maximum."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        if number % GROUP == 0:
            prompt = tuple(rng.randrange(3, vocabulary) for _ in range(rng.randrange(16, 49)))
        length = max(4, min(longest, round(rng.lognormvariate(0, 0.7) * longest / 4)))
        completion = tuple(rng.randrange(3, vocabulary) for _ in range(length))
        lines.append(Line(prompt, completion, 1.0 if number % 3 else -1.5))
    return tuple(lines)
