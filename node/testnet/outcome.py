"""What a testnet came to, as it is found out on the way."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What the exit code follows from."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
