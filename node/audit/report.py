"""What an audit verified, and what it could not check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dht.errors import NodeError

NOT_RECORDED = (
    "which indices a step's share and limit admitted, and whether rows came in time: heads are not kept",
    "what validators and proposers left out: only what was credited is recorded",
)
"""What no public record shows."""


class AuditFailed(NodeError):
    """Something in the run's records is wrong. `what` names it for programs."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}")


@dataclass(slots=True)
class Report:
    """Counts of what was verified, by name, and sentences for what could not be checked."""

    run: str
    checked: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)

    def held(self, what: str, count: int = 1) -> None:
        """Count items of a kind that were checked and are correct."""
        self.checked[what] += count

    def lack(self, what: str) -> None:
        """Note something that could not be checked because a record is unavailable."""
        self.missing.append(what)
