"""What the series of steps says of a run that is going wrong, before its reward does.

INTELLECT-2's runs ended with entropy that rose again after it had fallen; growing clip fractions and log-probabilities that two
ways of computing do not agree on come before a collapse, too. Pure; begins anew with the process.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from roles.rl.metrics import StepMetrics

WINDOW = 5
"""Steps that are averaged: one of them says little."""
REBOUND, REBOUND_NATS = 1.5, 0.05
"""Entropy above its lowest mean by this factor, and by so much."""
GROWTH, MUCH_CLIPPED = 3.0, 0.05
"""Clipped share above that of the first steps by this factor, and above this share of all tokens."""
MISMATCH = 0.02
"""Nats between equal weights: bf16 on one machine gives some thousandths."""
AGAIN = 10
"""Steps before the same alarm is raised again."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm for the operator: event name, the value measured, and the one it is compared with."""

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
        """Alarms raised by this step; none for a step that nothing was learned from."""
        if not metrics.tokens:
            return []
        self._entropy.append(metrics.entropy)
        self._clipped.append(metrics.clipped_low + metrics.clipped_high + metrics.clipped_delta)
        found = [self._rebound(), self._growth(), self._disagreement(metrics)]
        return [alarm for alarm in found if alarm and self._is_due(alarm, metrics.step)]

    def _rebound(self) -> Alarm | None:
        """TRN-02"""
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
        """TRN-10: here twice, or at the workers' and here."""
        worst = max(metrics.mismatch, metrics.reported_mismatch)
        return Alarm("logprobs.mismatched", worst, MISMATCH) if worst > MISMATCH else None

    def _is_due(self, alarm: Alarm, step: int) -> bool:
        if step - self._raised.get(alarm.event, step - AGAIN) < AGAIN:
            return False
        self._raised[alarm.event] = step
        return True
