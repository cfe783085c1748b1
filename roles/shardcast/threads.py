"""Blocking socket work in a thread that ends soon after the awaiting task is cancelled."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

from dht.errors import TransportError

T = TypeVar("T")

LEAVES_WITHIN = 2.0
"""Seconds to wait for a thread once its socket is shut: it may be writing to a disk or still connecting."""


class Call:
    """One use of a socket. `stop` is called from a thread other than the one using it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_stopped = False

    def use(self, used: socket.socket | None) -> None:
        """Set the socket used from now on. Raises TransportError when the call has been stopped."""
        with self._lock:
            self._socket = used
            if self._is_stopped:
                raise TransportError("the transfer was given up")

    def stop(self) -> None:
        """End reads and writes on the socket at once."""
        with self._lock:
            self._is_stopped = True
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # also for TLS: its own drops its state


async def run_stoppable(threads: Executor, call: Call, work: Callable[[], T]) -> T:
    """Run `work` in a thread. When cancelled, stop the call and wait for the thread, which
    may still be writing a file."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        call.stop()
        await asyncio.wait([future], timeout=LEAVES_WITHIN)
        raise
