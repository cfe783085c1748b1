"""From an observation to one number: how rarely an honest submission deviates as much, and its
contribution to a history.

Every bound holds however the statistics are correlated: p-values are combined by Bonferroni, and so
are histories (`history`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from roles.toploc.joined.calibration import NAMES, Calibration, Component, Floats, sums_of, units_of
from roles.toploc.observation import Observation

SMALLEST = 1e-300
RATIOS = (1.25, 2.0, 8.0)  # a history is tested for deviations this many times the honest ones
MOST_EVIDENCE = 8.0  # nats; no single submission decides a history


@dataclass(frozen=True, slots=True)
class Score:
    """`p`: at most this share of honest submissions deviate as much, whatever their length; 1.0 for no tokens.
    `evidence`: for each component and each of `RATIOS`, the logarithm of a quantity whose mean over honest submissions
    is at most 1; between log(1/2) and 8. `component`, and `completion` if it is a single one: what deviates most.
    `ratios`: mean of each component divided by its level."""

    p: float
    evidence: tuple[float, ...]
    component: str
    completion: int | None
    ratios: tuple[float, float, float]

    def __str__(self) -> str:
        where = "" if self.completion is None else f" of completion {self.completion}"
        figures = ", ".join(f"{name} {ratio:.3g}" for name, ratio in zip(NAMES, self.ratios, strict=True))
        return f"p {self.p:.3g} by {self.component}{where}; times the honest level: {figures}"


def score(observation: Observation, calibration: Calibration) -> Score:
    """Judge a submission by its sums as a whole and by those of each completion, separately for each component."""
    found: list[tuple[float, str, int | None]] = [(1.0, NAMES[0], None)]
    evidence: list[float] = []
    ratios = []
    completions = len(observation.margins)
    for name, component, units in zip(NAMES, calibration.components, units_of(observation), strict=True):
        sums, counts = sums_of(units, component.levels, completions)
        total, count = float(sums.sum()), float(counts.sum())
        ratios.append(total / count if count else 0.0)
        if not count:
            evidence += [0.0] * len(RATIOS)
            continue
        found.append((tail(component, total, counts), name, None))
        judged = np.flatnonzero(counts)
        alone = tails(component, sums[judged], counts[judged], counts[judged] ** 2) * completions
        found.append((float(alone.min()), name, int(judged[alone.argmin()])))
        evidence += [_bounded(log_ratio(component, total, counts, ratio)) for ratio in RATIOS]
    p, name, where = min(found, key=lambda each: each[0])
    return Score(min(1.0, 2 * len(NAMES) * p), tuple(evidence), name, where, (ratios[0], ratios[1], ratios[2]))


def tails(component: Component, totals: Floats, counts: Floats, squares: Floats) -> Floats:
    """P(sum >= total) for honest sums over `counts` units, with `squares` the sum of the completions'
    squared counts. Elementwise."""
    variance = component.unit * counts + component.completion * squares + component.submission * counts**2
    shape, scale = torch.from_numpy(counts**2 / variance), torch.from_numpy(variance / counts)
    found: Floats = torch.special.gammaincc(shape, torch.from_numpy(totals) / scale).numpy()
    return np.maximum(found, SMALLEST)


def tail(component: Component, total: float, counts: Floats) -> float:
    """P(sum >= total) for an honest submission with this many units in each completion."""
    n, squares = counts.sum(keepdims=True), (counts**2).sum(keepdims=True)
    return float(tails(component, np.array([total]), n, squares)[0])


def log_ratio(component: Component, total: float, counts: Floats, ratio: float) -> float:
    """Log likelihood of the sum if everything deviates `ratio` times as much, minus that of an honest one."""
    shape, scale = component.gamma(counts)
    return total / scale * (1 - 1 / ratio) - shape * math.log(ratio)


def _bounded(log: float) -> float:
    """Average of honesty and likelihood ratio, half each, so that evidence never falls by more than log 2 at once."""
    return min(float(np.logaddexp(0.0, log)) - math.log(2), MOST_EVIDENCE)
