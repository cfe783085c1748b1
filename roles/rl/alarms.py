"""Signs in the series of steps that a run is going wrong, before its reward shows it.

INTELLECT-2's runs ended with entropy that rose again after it had fallen. Growing clip fractions, and log-probabilities
on which two computations disagree, also precede a collapse. Pure; starts anew with the process.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from roles.rl.metrics import StepMetrics

WINDOW = 5
"""Number of steps averaged, since a single step says little."""
REBOUND, REBOUND_NATS = 1.5, 0.05
"""Entropy must exceed its lowest mean by this factor and by this amount."""
GROWTH, MUCH_CLIPPED = 3.0, 0.05
"""The clipped share must exceed that of the first steps by this factor, and this share of all tokens."""
MISMATCH = 0.02
"""Nats of difference between equal weights; bf16 on one machine gives a few thousandths."""
AGAIN = 10
"""Number of steps before the same alarm is raised again."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm for the operator: event name, measured value, and the value it is compared with."""

    event: str
    value: float
    usual: float


@dataclass(slots=True)
class Alarms:
    """Watches the metrics of each step."""

    _entropy: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _clipped: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _lowest: float | None = None
    _usual: float | None = None
    _raised: dict[str, int] = field(default_factory=dict)

    def look(self, metrics: StepMetrics) -> list[Alarm]:
        """Alarms raised by this step; none for a step in which nothing was learned."""
        if not metrics.tokens:
            return []
        self._entropy.append(metrics.entropy)
        self._clipped.append(metrics.clipped_low + metrics.clipped_high + metrics.clipped_delta)
        found = [self._rebound(), self._growth(), self._disagreement(metrics)]
        return [alarm for alarm in found if alarm and self._is_due(alarm, metrics.step)]

    def _rebound(self) -> Alarm | None:
        """Entropy rebound (TRN-02)."""
        if len(self._entropy) < WINDOW:
            return None
        now = sum(self._entropy) / WINDOW
        self._lowest = now if self._lowest is None else min(now, self._lowest)
        is_back = now > self._lowest * REBOUND and now > self._lowest + REBOUND_NATS
        return Alarm("entropy.rebounded", now, self._lowest) if is_back else None

    def _growth(self) -> Alarm | None:
        if len(self._clipped) < WINDOW:
            return None
        now = sum(self._clipped) / WINDOW
        if self._usual is None:
            self._usual = now
        grown = now > max(self._usual * GROWTH, MUCH_CLIPPED)
        return Alarm("clipping.grown", now, self._usual) if grown else None

    def _disagreement(self, metrics: StepMetrics) -> Alarm | None:
        """Two computations disagree: both here, or the workers' and ours (TRN-10)."""
        worst = max(metrics.mismatch, metrics.reported_mismatch)
        return Alarm("logprobs.mismatched", worst, MISMATCH) if worst > MISMATCH else None

    def _is_due(self, alarm: Alarm, step: int) -> bool:
        if step - self._raised.get(alarm.event, step - AGAIN) < AGAIN:
            return False
        self._raised[alarm.event] = step
        return True
