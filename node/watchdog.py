"""Where every thread stands, written down when the event loop stands still, or when an operator asks: a hang leaves a cause.

A thread of ours writes it, holding the interpreter's lock. The interpreter's own watchdog does not hold it: what it reads may
change under it, and then the process dies of its diagnosis. So a hang that keeps the lock, in native code, leaves nothing.
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
"""A start begins the file anew once it is so long; until then nothing more is written."""


class Watchdog:
    """Writes all threads' stacks when the event loop hangs; `kill -USR1 PID` asks for them at any time."""

    def __init__(self, home: Path, *, stuck: float = STUCK_SECONDS) -> None:
        self._path, self._stuck, self._tick = home / STACKS_FILE, stuck, min(TICK_SECONDS, stuck / 4)
        self._last_turn = time.monotonic()
        self._is_over = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled. A folder that cannot be written to is said, and nothing is watched."""
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
                reported = turned  # once a hang
                _write_stacks(file, f"the event loop had no turn for {time.monotonic() - turned:.0f} s")


@contextlib.contextmanager
def _asked(file: BinaryIO) -> Iterator[None]:
    """Stacks at SIGUSR1, which only a program's main thread is told of."""
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
    with contextlib.suppress(OSError):  # a full disk
        if _size(file) < MOST_BYTES:
            file.write("".join([*lines, "\n"]).encode(errors="replace"))


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
