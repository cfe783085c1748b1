"""The outcome of a testnet, collected as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What the exit status is derived from."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
