"""An actor's life-cycle as a table of transitions, and the errors that end an actor early."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import structlog

from dht.errors import NodeError, first_error

log = structlog.get_logger()

S = TypeVar("S", bound=StrEnum)


class Lifecycle(Generic[S]):
    """The current state of one actor. Each transition is logged as `event`; one missing from the table is a bug."""

    def __init__(self, table: Mapping[tuple[S, str], S], start: S, *, event: str) -> None:
        self._table, self._event = table, event
        self.state = start

    def on(self, what: str) -> None:
        """Make the transition of event `what`. Raises KeyError when the current state has none for it."""
        before, self.state = self.state, self._table[(self.state, what)]
        log.debug(self._event, before=before.value, after=self.state.value, on=what)


class DiskFailed(NodeError):
    """The actor's folder cannot be written or read; the cause is the OSError, which may mean a full disk."""


def fault_of(errors: ExceptionGroup[NodeError | OSError], actor: str) -> NodeError:
    """The single error to end an actor with, out of all that its tasks raised: a disk error (as
    DiskFailed) before any other."""
    disk, _ = errors.split(OSError)
    first = first_error(disk or errors)
    if isinstance(first, NodeError):
        return first
    fault = DiskFailed(f"the {actor}'s folder cannot be used: {first}")
    fault.__cause__ = first
    return fault
