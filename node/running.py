"""Small parts that every node runs beside its actor: retrying with occasional messages, and stopping on signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import structlog

from dht.errors import TransportError
from ledger.errors import LedgerUnavailable
from node.defaults import COMPLAIN_SECONDS, FIRST_COMPLAINT_SECONDS, START_PATIENCE_SECONDS, WAIT_SECONDS
from node.errors import ConfigError
from node.parsing import print_hint

log = structlog.get_logger()
T = TypeVar("T")
REPEAT_SECONDS = 0.5
TRANSIENT = (TransportError, LedgerUnavailable, TimeoutError)


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    event: str,
    hint: str,
    patience: float = START_PATIENCE_SECONDS,
) -> T:
    """Retry until it succeeds, logging `event` after a short delay and then occasionally. Raises ConfigError
    with `hint` when time is up."""
    begun = time.monotonic()
    said = begun - COMPLAIN_SECONDS + FIRST_COMPLAINT_SECONDS
    while True:
        try:
            return await attempt()
        except TRANSIENT as error:
            cause = str(error) or "no answer in time"
        now = time.monotonic()
        if now - begun > patience:
            raise ConfigError(f"{hint} (tried for {int(now - begun)} s; last: {cause})")
        if now - said >= COMPLAIN_SECONDS:
            log.warning(event, cause=cause, waited=round(now - begun))
            said = now
        await asyncio.sleep(WAIT_SECONDS)


@contextlib.contextmanager
def said_when_slow(
    text: str, *, seconds: float = FIRST_COMPLAINT_SECONDS, say: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Tell the user at the terminal what is being waited for, if it takes longer than a moment."""
    is_seen = say is not None or sys.stderr.isatty()
    saying = asyncio.get_running_loop().call_later(seconds, say or print_hint, text) if is_seen else None
    try:
        yield
    finally:
        if saying is not None:
            saying.cancel()


class StopSignal:
    """Set by SIGTERM or SIGINT. The second signal calls `hurry` if there is one; otherwise it, or the
    third, ends the process at once.

    Signals within `REPEAT_SECONDS` of the first count as the first: when a parent is killed, its death signal is sent
    once for each of its threads.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.event = asyncio.Event()
        self.was_interrupt = False
        self._clock, self._first = clock, 0.0
        self.hurry: Callable[[], None] | None = None

    def receive(self, number: int) -> None:
        """Handle a signal: set the event, or hurry, or end the process."""
        if self.event.is_set() and self._clock() - self._first < REPEAT_SECONDS:
            return
        if self.event.is_set() and self.hurry is not None:
            hurry, self.hurry = self.hurry, None
            hurry()
            return
        if self.event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.was_interrupt = number == signal.SIGINT
        self._first = self._clock()
        self.event.set()


@contextlib.asynccontextmanager
async def stop_on_signals() -> AsyncIterator[StopSignal]:
    """Turn SIGTERM, SIGINT and SIGHUP into an ordered shutdown."""
    loop, stop = asyncio.get_running_loop(), StopSignal()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.receive, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def until_stopped(work: Awaitable[None], stop: StopSignal, *, seconds: float) -> bool:
    """Run `work` until it ends or a stop is requested. Returns whether it ended by itself. Its own errors are raised;
    errors during the shutdown are logged.

    After a stop it has `seconds` to shut down in order.
    """
    running = asyncio.ensure_future(work)
    asked, is_over = asyncio.ensure_future(stop.event.wait()), False
    try:
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        is_over = running.done()
        if is_over:
            await running
        return is_over
    finally:
        for task in (running, asked):
            task.cancel()
        _, left = await asyncio.wait({running, asked}, timeout=seconds)
        if left:
            log.warning("shutdown.incomplete", seconds=seconds)
        elif not is_over and not running.cancelled() and (error := running.exception()) is not None:
            log.error("shutdown.failed", why=f"{type(error).__name__}: {error}"[:300])


def leave(code: int) -> int:
    """Return the exit status, or end the process here if model work or a host look-up is in progress. These cannot be
    cancelled and nobody needs their result, but the interpreter would wait for them."""
    if any(thread.name.startswith(("compute", "names")) and thread.is_alive() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
