"""What an audit found to hold, and what it could not look at."""

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
    """Something in the run's records does not hold. `what` names it for programs."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}")


@dataclass(slots=True)
class Report:
    """Counts of what holds, by name; sentences for what is missing."""

    run: str
    checked: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)

    def held(self, what: str, count: int = 1) -> None:
        """So many things of a kind were checked and hold."""
        self.checked[what] += count

    def lack(self, what: str) -> None:
        """Something could not be checked, because a record is not to be had."""
        self.missing.append(what)
