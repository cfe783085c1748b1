"""Blocking work on a socket, in a thread, that ends soon after whoever awaits it is cancelled."""

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
"""Seconds a thread is waited for once its socket is shut: it is at a disk, or at a connection not yet made."""


class Call:
    """One use of a socket. `stop` comes from another thread than the one that uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_stopped = False

    def use(self, used: socket.socket | None) -> None:
        """The socket used from now on. Raises TransportError when the call was stopped meanwhile."""
        with self._lock:
            self._socket = used
            if self._is_stopped:
                raise TransportError("the transfer was given up")

    def stop(self) -> None:
        """End what is read and written there, at once."""
        with self._lock:
            self._is_stopped = True
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS too: its own would take its state


async def run_stoppable(threads: Executor, call: Call, work: Callable[[], T]) -> T:
    """Run `work` in a thread. When cancelled, stop the call and wait for the thread, which may still be writing a file."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        call.stop()
        await asyncio.wait([future], timeout=LEAVES_WITHIN)
        raise
