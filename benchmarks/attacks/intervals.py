"""Confidence intervals of counted rates, and estimates of rarer rates from the tail of a small sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

STEPS = 60
TAIL_SHARE = 0.2


def exact_interval(hits: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate, with half of the error on each side: (9, 9) -> (0.664, 1.0)."""
    if not trials:
        return 0.0, 1.0
    beyond = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _solve(lambda rate: _at_least(hits, trials, rate) - beyond)
    high = 1.0 if hits == trials else _solve(lambda rate: beyond - (1 - _at_least(hits + 1, trials, rate)))
    return low, high


def tail_rate(values: Sequence[float], limit: float) -> float:
    """The rate of values above a limit, by an exponential fitted to the largest fifth; also
    works where none was counted.

    `values` should be like `-log p`, whose tail is exponential. Returns 1.0 for fewer than ten.
    """
    ordered = sorted(values, reverse=True)
    count = int(len(ordered) * TAIL_SHARE)
    if count < 2:
        return 1.0
    start = ordered[count]
    mean = sum(value - start for value in ordered[:count]) / count
    if limit <= start:
        return sum(value > limit for value in ordered) / len(ordered)
    return count / len(ordered) * math.exp(-(limit - start) / mean) if mean > 0 else 0.0


def _at_least(hits: int, trials: int, rate: float) -> float:
    """P(X >= hits) for a binomial variable."""
    if rate <= 0 or rate >= 1:
        return float(rate >= 1 or hits == 0)
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(rate)
        + (trials - k) * math.log1p(-rate)
        for k in range(hits, trials + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def _solve(function: Callable[[float], float]) -> float:
    """The rate at which an increasing function crosses zero."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
