"""Who has connections open, and who makes room when there are too many: whoever holds most that say nothing, and when all
are at work, whoever holds many times what the one who comes does.

So a crowd of connections that are silent, or as slow as they may be, costs the crowd, and others get in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field

FAIR = 4
"""Who holds more than so many times what the one who comes does, makes room."""
Close = Callable[[], None]


def party_of(host: str) -> str:
    """Whom a connection is counted for: an IPv4 address, or the first half of an IPv6 one, since who has it has all of its
    2^64 addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


@dataclass(slots=True)
class Doors:
    """The connections of one server. `most` are open at once, `per_address` of one address."""

    most: int
    per_address: int
    _open: dict[str, dict[object, Close]] = field(default_factory=dict)  # by address, the eldest first
    _total: int = 0
    _silent: dict[str, dict[object, Close]] = field(default_factory=dict)  # of these

    def enter(self, address: str, connection: object, close: Close) -> bool:
        """Count a new connection; whether it may stay. Of too many, one is closed (see above)."""
        theirs = self._open.setdefault(address, {})
        theirs[connection] = close
        self._total += 1
        if len(theirs) > self.per_address:
            return False
        return self._total <= self.most or self._make_room(len(theirs))

    def leave(self, address: str, connection: object) -> None:
        """It is closed."""
        self.speaks(address, connection)
        self._total -= 1
        self._forget(self._open, address, connection)

    def is_silent(self, address: str, connection: object, close: Close) -> None:
        """It is waited for, to say what it wants."""
        self._silent.setdefault(address, {}).setdefault(connection, close)

    def speaks(self, address: str, connection: object) -> None:
        """It has asked for something."""
        self._forget(self._silent, address, connection)

    def _make_room(self, own: int) -> bool:
        places = self._silent or self._open
        busiest = max(places, key=lambda address: len(places[address]))
        if places is self._open and len(self._open[busiest]) <= FAIR * own:
            return False
        connection, close = next(iter(places[busiest].items()))
        self.speaks(busiest, connection)
        if places is self._open:
            self._forget(self._open, busiest, connection)  # it is chosen once
        close()
        return True

    @staticmethod
    def _forget(places: dict[str, dict[object, Close]], address: str, connection: object) -> None:
        theirs = places.get(address)
        if theirs is not None:
            theirs.pop(connection, None)
            if not theirs:
                del places[address]
