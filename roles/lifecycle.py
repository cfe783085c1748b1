"""An actor's life as a table: which event leads from which state to which, and what ends it before its time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import structlog

from dht.errors import NodeError, first_error

log = structlog.get_logger()

S = TypeVar("S", bound=StrEnum)


class Lifecycle(Generic[S]):
    """Where one actor is in its table; each move is told as `event`. One that the table lacks is a fault of ours."""

    def __init__(self, table: Mapping[tuple[S, str], S], start: S, *, event: str) -> None:
        self._table, self._event = table, event
        self.state = start

    def on(self, what: str) -> None:
        """Move. Raises KeyError for an event that the state does not know."""
        before, self.state = self.state, self._table[(self.state, what)]
        log.debug(self._event, before=before.value, after=self.state.value, on=what)


class DiskFailed(NodeError):
    """The actor's folder cannot be written or read; the cause is the disk's own error, which may be want of room."""


def fault_of(errors: ExceptionGroup[NodeError | OSError], actor: str) -> NodeError:
    """What ends an actor, of all that its tasks raised: the disk's error, told as DiskFailed, before any other."""
    disk, _ = errors.split(OSError)
    first = first_error(disk or errors)
    if isinstance(first, NodeError):
        return first
    fault = DiskFailed(f"the {actor}'s folder cannot be used: {first}")
    fault.__cause__ = first
    return fault
