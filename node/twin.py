"""Two machines with the same key: the one started later detects it and stops, so that they never
contradict each other (KEY-05).

A boot id begins with its start time (unix milliseconds), then a random part, so of two boots
the larger is the later one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import structlog

from dht.envelope import Envelope
from dht.errors import NodeError, PeerError
from roles.messages import NodeRecord, open_row
from roles.spec import RunSpec

log = structlog.get_logger()


class TwinFound(NodeError):
    """Another machine, started earlier, uses this node's key. Stop one of them; every machine needs a key of its own."""

    def __init__(self) -> None:
        super().__init__(str(self.__doc__))


def new_boot(now_ms: int) -> str:
    """A new boot id: 12 hexadecimal digits of unix milliseconds, 4 random ones."""
    return f"{now_ms:012x}{os.urandom(2).hex()}"


def check_twin(rows: Iterable[Envelope], *, spec: RunSpec, own: NodeRecord, since: int) -> None:
    """Look for records of our own key from another boot, signed after our first one (its sequence is `since`).

    Raises TwinFound when the other was started first. A later one is only logged, since it is the one that must stop.
    Records from our own earlier boots are older than `since` and are ignored (BOOT-18).
    """
    for row in rows:
        if row.signer != own.node or row.sequence <= since:
            continue
        try:
            record = open_row(row, run=spec.run_id, buckets=spec.buckets)
        except PeerError:
            continue
        if isinstance(record, NodeRecord) and record.boot != own.boot and record.state == "online":
            if record.boot < own.boot:
                raise TwinFound
            log.warning("twin.seen", boot=record.boot)
