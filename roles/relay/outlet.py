"""Sends files from the page cache to sockets in threads, because in the event loop the overhead per piece
exceeds the cost of its bytes.

A thread stays with a client only while the client keeps reading; slow clients are waited for in the event loop.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from concurrent.futures import Executor
from functools import partial
from typing import BinaryIO

from dht.errors import TransportError
from roles.shardcast.pace import Pace
from roles.shardcast.threads import Call, run_stoppable

AT_ONCE = 2**23
"""Bytes, and ..."""
TURN = 0.1
"""... seconds, after which another client may have the thread."""
PATIENCE_MS = 10
TAKEN = 2**20
"""Bytes a client must read before its time limit restarts."""


async def send_file(
    threads: Executor,
    transport: asyncio.Transport,
    file: BinaryIO,
    offset: int,
    count: int,
    *,
    within: float,
    pace: Pace,
) -> None:
    """Send part of a file, in plain text, over a transport with an empty write buffer. Raises TimeoutError when the
    client does not read a MiB, or the rest, within `within` seconds; OSError or TransportError when it is gone."""
    call, loop, taken, most = Call(), asyncio.get_running_loop(), 0, min(AT_ONCE, pace.piece)
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sink:
        call.use(sink)
        async with asyncio.timeout(within) as limit:
            while count:
                sent = await run_stoppable(threads, call, partial(_push, sink, file, offset, min(count, most)))
                offset, count, taken = offset + sent, count - sent, taken + sent
                if transport.is_closing():
                    raise TransportError("the connection was closed")
                has_waited = await pace.pause(sent)  # a delay that is not the client's fault
                if has_waited or taken >= TAKEN:
                    limit.reschedule(loop.time() + within)
                    taken = 0
                if count:
                    await _writable(sink)


def _push(sink: socket.socket, file: BinaryIO, offset: int, count: int) -> int:
    """Send as much as the socket takes without much waiting."""
    sent, until, waiting = 0, time.monotonic() + TURN, select.poll()
    waiting.register(sink, select.POLLOUT)
    while sent < count and time.monotonic() < until:
        try:
            piece = os.sendfile(sink.fileno(), file.fileno(), offset + sent, count - sent)
        except BlockingIOError:
            if not waiting.poll(PATIENCE_MS):
                break
            continue
        if not piece:
            raise OSError("the file ended before its time")
        sent += piece
    return sent


async def _writable(sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sink, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sink)
