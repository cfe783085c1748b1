"""Pass rates with their uncertainty. Pure.

A table maps each problem to the scores of its samples. A sample passes when it scores 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Table = Mapping[int, Sequence[float]]
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95% confidence bounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f})"


def passes(scores: Sequence[float]) -> int:
    """How many samples pass."""
    return sum(score >= 1.0 for score in scores)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of `k` samples passes: 1 - C(n-c, k) / C(n, k), the unbiased estimator of
    Chen et al. (2021), "Evaluating Large Language Models Trained on Code", equation 1. Raises ValueError when
    there are fewer than `k` samples."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of each problem, not {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def estimate_pass_at_k(table: Table, k: int) -> Estimate:
    """pass@k over all problems. The bounds come from resampling the problems, because samples of one
    problem are not independent."""
    return _estimate([pass_at_k(len(scores), passes(scores), k) for scores in table.values()])


def estimate_score(table: Table) -> Estimate:
    """Mean score over all problems."""
    return _estimate([math.fsum(scores) / len(scores) for scores in table.values()])


def compare(ours: Table, theirs: Table, figure: Callable[[Sequence[float]], float]) -> Estimate:
    """Mean paired difference (theirs minus ours) over the problems that both have, so that the difficulty they share
    cancels. Raises ValueError when they have none in common."""
    shared = sorted(ours.keys() & theirs.keys())
    return _estimate([figure(theirs[problem]) - figure(ours[problem]) for problem in shared])


def wilson(passed: int, count: int) -> Estimate:
    """A proportion of independent trials with its Wilson interval (1927), which is also valid near 0 and 1."""
    if count < 1:
        raise ValueError("no trials")
    z, share = 1.959964, passed / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return Estimate(share, max(0.0, middle - reach), min(1.0, middle + reach))


def _estimate(values: Sequence[float]) -> Estimate:
    if not values:
        raise ValueError("no problems")
    found = np.asarray(values, dtype=np.float64)
    means = _resampled_means(found)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    if found.min() == found.max() and found.min() in (0.0, 1.0):
        low, high = _of_unanimous(len(values), bool(found[0]))
    return Estimate(float(found.mean()), float(low), float(high))


def _resampled_means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bootstrap means. The generator's seed is fixed, so that the same table gives the same bounds."""
    draws = np.random.default_rng(0).integers(0, len(values), size=(RESAMPLES, len(values)))
    return np.asarray(values[draws].mean(axis=1))


def _of_unanimous(count: int, passed: bool) -> tuple[float, float]:
    """Bounds where every problem had the same outcome: resampling shows no spread there, the binomial bound does."""
    bound = wilson(count if passed else 0, count)
    return (bound.low, 1.0) if passed else (0.0, bound.high)
