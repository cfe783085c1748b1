"""Large bodies from a socket in few pieces. Each piece costs its thread the interpreter's lock, and a wake-up, several times:
with many transfers at once that comes to more than the bytes do."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

BLOCK = 2**21
"""Bytes read, hashed and written in one go."""
LOW_WATER = 2**18
"""Bytes the kernel gathers before it wakes the reader. At the slowest speed a transfer is allowed it takes 4 seconds."""
_KEPT = threading.local()


def room() -> memoryview:
    """This thread's own block of memory, valid until its next call: allocating one costs more than filling it."""
    if not hasattr(_KEPT, "room"):
        _KEPT.room = memoryview(bytearray(BLOCK))
    kept: memoryview = _KEPT.room
    return kept


class LowWater:
    """Has a socket wake its reader for `LOW_WATER` bytes at least, as long as so many are sure to come."""

    def __init__(self, sock: socket.socket | None) -> None:
        """`sock` None, or one with TLS: does nothing, since there the bytes that arrive are not those that are read."""
        self._sock = None if isinstance(sock, ssl.SSLSocket) else sock
        self._level = 1

    def before(self, *, left: int) -> None:
        """Prepare for reading a block when `left` bytes are still to come."""
        level = LOW_WATER if left >= BLOCK + LOW_WATER else 1
        if self._sock is not None and level != self._level:
            with suppress(OSError):  # a system that has no such thing wakes us oftener, and that is all
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, level)
            self._level = level
