"""Health of the process itself: event loop lag, memory, uptime, open file limit."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque

import structlog

from node.defaults import COMPLAIN_SECONDS, LAG_PERIOD_SECONDS, LAG_SAMPLES, LAGGED_SECONDS, OPEN_FILES

log = structlog.get_logger()


class LoopLag:
    """Delay of the event loop. Peers give up a call after 5 seconds, and a node after two such calls."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=LAG_SAMPLES)
        self.worst = 0.0
        self._said = -COMPLAIN_SECONDS

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_PERIOD_SECONDS
            await asyncio.sleep(LAG_PERIOD_SECONDS)
            late = max(0.0, loop.time() - due)
            self.samples.append(late)
            self.worst = max(self.worst, late)
            if late > LAGGED_SECONDS and loop.time() - self._said > COMPLAIN_SECONDS:
                self._said = loop.time()
                log.warning(
                    "loop.lagged",
                    seconds=round(late, 2),
                    why="peers drop a node that does not answer two calls",
                )

    def percentile(self, share: float) -> float:
        """Lag in seconds below which this share of the last minute's samples lies."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Uptime:
    """Uptime of the process, and its peak memory."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    @property
    def peak_bytes(self) -> int:
        """Largest resident size so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def raise_file_limit(wanted: int = OPEN_FILES) -> int:
    """Raise the soft limit on open files as far as the hard limit permits. Returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft >= ceiling:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    except (ValueError, OSError):
        return soft
    return ceiling
