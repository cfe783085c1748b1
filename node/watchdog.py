"""Writes every thread's stack to a file when the event loop hangs, or on an operator's request, so
that a hang leaves evidence.

One of our own threads writes it, holding the interpreter's lock. The interpreter's own watchdog does not hold the lock,
so what it reads may change meanwhile, and the process can crash because of its diagnosis. The drawback: a hang that
holds the lock, in native code, leaves no evidence.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import structlog

log = structlog.get_logger()

STACKS_FILE = "stacks.txt"
STUCK_SECONDS = 10.0
TICK_SECONDS = 1.0
MOST_BYTES = 2**20
"""Size at which nothing more is written; the next start then begins the file anew."""


class Watchdog:
    """Writes all threads' stacks when the event loop hangs; `kill -USR1 PID` requests them at any time."""

    def __init__(self, home: Path, *, stuck: float = STUCK_SECONDS) -> None:
        self._path, self._stuck, self._tick = home / STACKS_FILE, stuck, min(TICK_SECONDS, stuck / 4)
        self._last_turn = time.monotonic()
        self._is_over = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled. If the folder is not writable, this is logged and nothing is watched."""
        try:
            with self._open() as file, self._watching(file), _asked(file):
                await self._turn(file)
        except OSError as error:
            log.warning("watchdog.off", file=str(self._path), why=error.strerror)

    def _open(self) -> BinaryIO:
        is_long = self._path.exists() and self._path.stat().st_size >= MOST_BYTES
        return self._path.open("wb" if is_long else "ab", buffering=0)

    async def _turn(self, file: BinaryIO) -> None:
        size = _size(file)
        while True:
            self._last_turn = time.monotonic()
            await asyncio.sleep(self._tick)
            if _size(file) > size:
                size = _size(file)
                log.warning("stacks.written", file=str(self._path))

    @contextlib.contextmanager
    def _watching(self, file: BinaryIO) -> Iterator[None]:
        watcher = threading.Thread(target=self._watch, args=(file,), name="watchdog", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._is_over.set()
            watcher.join()

    def _watch(self, file: BinaryIO) -> None:
        reported = 0.0
        while not self._is_over.wait(self._tick):
            turned = self._last_turn
            if turned != reported and time.monotonic() - turned > self._stuck:
                reported = turned  # once per hang
                _write_stacks(file, f"the event loop had no turn for {time.monotonic() - turned:.0f} s")


@contextlib.contextmanager
def _asked(file: BinaryIO) -> Iterator[None]:
    """Write stacks on SIGUSR1. Signal handlers can be installed only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: _write_stacks(file, "asked for by SIGUSR1"))
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _write_stacks(file: BinaryIO, why: str) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {why}\n"]
    for ident, frame in sys._current_frames().items():
        lines += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame)]
    with contextlib.suppress(OSError):  # the disk may be full
        if _size(file) < MOST_BYTES:
            file.write("".join([*lines, "\n"]).encode(errors="replace"))


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
