"""The result of a check: one line, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Severity of a finding. Only a FAULT keeps a node from working."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing checked. `fix` says what to do; it is empty when nothing needs doing."""

    check: str
    state: State
    said: str
    fix: str = ""


ORDER = tuple(State)


def ok(check: str, said: str) -> Finding:
    """All is well."""
    return Finding(check, State.OK, said)


def skipped(check: str, said: str) -> Finding:
    """Not checked, and why."""
    return Finding(check, State.SKIPPED, said)


def warning(check: str, said: str, fix: str) -> Finding:
    """The node works, but not as well as it could, or not for long."""
    return Finding(check, State.WARNING, said, fix)


def fault(check: str, said: str, fix: str) -> Finding:
    """The node will not work, or its work will not count."""
    return Finding(check, State.FAULT, said, fix)


def worst(findings: Iterable[Finding]) -> State:
    """The worst state among the findings; OK if there are none."""
    return max((finding.state for finding in findings), key=ORDER.index, default=State.OK)
