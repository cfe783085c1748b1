"""Reads large bodies from a socket in few pieces. Each piece costs its thread the interpreter's lock and a wake-up,
several times; with many concurrent transfers that exceeds the cost of the bytes."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

BLOCK = 2**21
"""Bytes read, hashed and written at once."""
LOW_WATER = 2**18
"""Bytes the kernel collects before it wakes the reader. At the slowest allowed speed that takes 4 seconds."""
_KEPT = threading.local()


def room() -> memoryview:
    """This thread's reusable block of memory, valid until its next call: allocating one costs more than filling it."""
    if not hasattr(_KEPT, "room"):
        _KEPT.room = memoryview(bytearray(BLOCK))
    kept: memoryview = _KEPT.room
    return kept


class LowWater:
    """Makes a socket wake its reader only for `LOW_WATER` bytes or more, while at least that many are sure to come."""

    def __init__(self, sock: socket.socket | None) -> None:
        """With `sock` None or a TLS socket this does nothing, since TLS bytes on the wire are not the bytes read."""
        self._sock = None if isinstance(sock, ssl.SSLSocket) else sock
        self._level = 1

    def before(self, *, left: int) -> None:
        """Prepare for reading a block when `left` bytes are still to come."""
        level = LOW_WATER if left >= BLOCK + LOW_WATER else 1
        if self._sock is not None and level != self._level:
            with suppress(OSError):  # a system without this option merely wakes us more often
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, level)
            self._level = level
