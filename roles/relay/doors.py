"""Who has connections open, and who makes room when there are too many: whoever holds most that say nothing.

So a crowd of silent connections, from one address or from many, costs the crowd, and who comes with a request gets in.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


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
    _open: Counter[str] = field(default_factory=Counter)
    _total: int = 0
    _silent: dict[str, dict[object, Callable[[], None]]] = field(default_factory=dict)  # by address, the eldest first

    def enter(self, address: str) -> bool:
        """Count a new connection; whether it may stay. Of too many, the eldest silent one of the busiest address is closed."""
        self._open[address] += 1
        self._total += 1
        if self._open[address] > self.per_address:
            return False
        return self._total <= self.most or self._make_room()

    def leave(self, address: str, connection: object) -> None:
        """It is closed."""
        self.speaks(address, connection)
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def is_silent(self, address: str, connection: object, close: Callable[[], None]) -> None:
        """It is waited for, to say what it wants."""
        self._silent.setdefault(address, {}).setdefault(connection, close)

    def speaks(self, address: str, connection: object) -> None:
        """It has asked for something."""
        silent = self._silent.get(address)
        if silent is not None:
            silent.pop(connection, None)
            if not silent:
                del self._silent[address]

    def _make_room(self) -> bool:
        busiest = max(self._silent, key=lambda address: len(self._silent[address]), default=None)
        if busiest is None:
            return False
        connection = next(iter(self._silent[busiest]))
        close = self._silent[busiest][connection]
        self.speaks(busiest, connection)
        close()
        return True
