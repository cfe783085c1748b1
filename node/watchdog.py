"""Where every thread stands, written down when the event loop stands still, or when an operator asks: a hang leaves a cause.

The interpreter's own watchdog writes it, from a thread that needs nothing of the ones that hang.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
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
    """One for a process: the interpreter has one timer. `kill -USR1 PID` asks for the stacks of a node that does not hang."""

    def __init__(self, home: Path, *, stuck: float = STUCK_SECONDS) -> None:
        self._path, self._stuck = home / STACKS_FILE, stuck

    async def run(self) -> None:
        """Watch for ever. A folder that cannot be written to is said, and nothing is watched."""
        try:
            with self._open() as file:
                await self._watch(file)
        except OSError as error:
            log.warning("watchdog.off", file=str(self._path), why=error.strerror)

    def _open(self) -> BinaryIO:
        is_long = self._path.exists() and self._path.stat().st_size >= MOST_BYTES
        return self._path.open("wb" if is_long else "ab", buffering=0)

    async def _watch(self, file: BinaryIO) -> None:
        faulthandler.register(signal.SIGUSR1, file=file)
        try:
            while True:
                size = os.fstat(file.fileno()).st_size
                if size < MOST_BYTES:
                    faulthandler.dump_traceback_later(self._stuck, file=file)
                await asyncio.sleep(TICK_SECONDS)
                if os.fstat(file.fileno()).st_size > size:
                    log.warning("stacks.written", file=str(self._path))
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.unregister(signal.SIGUSR1)
