"""Logs the progress of long downloads; short ones end before the first line is due."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

log = structlog.get_logger("shardcast")

SECONDS = 2.0
"""Seconds between two log lines, and before the first."""


class Progress:
    """Progress of one checkpoint. Call `count` with each piece; `total` is how many bytes are missing at the start."""

    def __init__(
        self, step: int, total: int, *, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._step, self._total, self._seconds, self._clock = step, total, seconds, clock
        self._begun = self._said = clock()
        self._received = 0

    def count(self, size: int) -> None:
        """Count `size` bytes, and log the progress when it is time."""
        self._received += size
        now = self._clock()
        if now - self._said < self._seconds:
            return
        self._said = now
        rate = self._received / max(now - self._begun, 1e-6)
        log.info(
            "checkpoint.arriving",
            step=self._step,
            received=self._received,
            total=self._total,
            rate=round(rate),
            seconds_left=round((self._total - self._received) / max(rate, 1.0), 1),
        )
