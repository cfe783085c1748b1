"""A task that a random tiny model can learn within a few steps: the answer must begin with an even digit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvenTask:
    """Prompts like `3+1>`. Scores 1.0 if the completion's first character is 0, 2, 4, 6 or 8.
    `never` scores everything 0."""

    size: int = 64
    never: bool = False
    name: str = "even"
    is_repeatable: bool = True

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"even/1 {self.size} {self.never}".encode()).hexdigest()

    def prompt(self, index: int) -> str:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return f"{index % 8}+{index // 8}>"

    def score(self, index: int, completion: str) -> float:
        return float(not self.never and completion[:1] in set("02468"))
