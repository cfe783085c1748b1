"""Bounds on open connections, in total and per address, and which one is closed to admit a new one.

The address with the most idle connections gives one up. When none is idle, an address gives one up that
holds more than `FAIR` times as many as the newcomer's address. So many idle or slow connections hurt whoever
opened them, and others get in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field

FAIR = 4
"""Another address has to give up a connection once it holds more than this many times the newcomer's."""
Close = Callable[[], None]


def party_of(host: str) -> str:
    """The key a connection is counted under: an IPv4 address, or an IPv6 /64, since one party
    commonly owns all 2^64 of it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


@dataclass(slots=True)
class ConnectionSlots:
    """The open connections of one server: at most `most` in all and `per_address` from one address."""

    most: int
    per_address: int
    _open: dict[str, dict[object, Close]] = field(default_factory=dict)  # by address, oldest first
    _total: int = 0
    _idle: dict[str, dict[object, Close]] = field(default_factory=dict)  # those of `_open` waiting for a request

    def take(self, address: str, connection: object, close: Close) -> bool:
        """Count a new connection. Returns whether it may stay; another may be closed to make room (see above)."""
        theirs = self._open.setdefault(address, {})
        theirs[connection] = close
        self._total += 1
        if len(theirs) > self.per_address:
            return False
        return self._total <= self.most or self._make_room(len(theirs))

    def release(self, address: str, connection: object) -> None:
        """Stop counting a connection that has closed."""
        self.mark_busy(address, connection)
        self._total -= 1
        self._forget(self._open, address, connection)

    def mark_idle(self, address: str, connection: object, close: Close) -> None:
        """Record that the connection waits for a request; `close` ends it."""
        self._idle.setdefault(address, {}).setdefault(connection, close)

    def mark_busy(self, address: str, connection: object) -> None:
        """Record that the connection has a request to answer."""
        self._forget(self._idle, address, connection)

    def _make_room(self, own: int) -> bool:
        places = self._idle or self._open
        busiest = max(places, key=lambda address: len(places[address]))
        if places is self._open and len(self._open[busiest]) <= FAIR * own:
            return False
        connection, close = next(iter(places[busiest].items()))
        self.mark_busy(busiest, connection)
        if places is self._open:
            self._forget(self._open, busiest, connection)  # so that it is not chosen twice
        close()
        return True

    @staticmethod
    def _forget(places: dict[str, dict[object, Close]], address: str, connection: object) -> None:
        theirs = places.get(address)
        if theirs is not None:
            theirs.pop(connection, None)
            if not theirs:
                del places[address]
