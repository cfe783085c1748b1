"""The noise of three statistics on honest nodes, as numbers: `fit` finds it, a spec pins it, `score` judges by it.

A statistic is a sum of non-negative values, one per unit: a chunk's exponent mismatches, a chunk's mean mantissa error,
a token's margin. Divided by the honest level of its class, a unit has mean 1. Over `n` units, `n_c` of them in
completion c, the sum is assumed to be Gamma distributed with

    mean      n
    variance  unit * n + completion * sum(n_c ** 2) + submission * n ** 2

so few units give a wide and skewed distribution, and what a whole completion or submission shares never averages out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roles.toploc.observation import Observation

Floats = npt.NDArray[np.float64]
NAMES = ("exponents", "mantissas", "margins")
FILLS = (0.25, 0.5, 0.999, 1.0)  # classes of chunks by how full they are: with fewer tokens the largest values differ
LARGEST_MARGIN = 1.0  # the most that a single extreme token contributes
LARGEST_MANTISSA = 2.0  # times its level, for a single extreme chunk (honest ones reached three times) ...
LEAST_MANTISSA = 1.0  # ... but never less than one unit
MANTISSA_CAP = 4095.0  # the largest of any encoding, used where no exponent agrees
GRAINS = (1.0, 0.05, 0.02)  # the smallest event of each statistic: a mismatch, a chunk's mantissa error, a margin


@dataclass(frozen=True, slots=True)
class Component:
    """One statistic's noise on honest nodes. `levels`: mean of a unit by class (four of chunks, one of tokens), 0 where
    a class was too rare to be known and is not judged. The rest are variances relative to the squared level."""

    levels: tuple[float, ...]
    unit: float
    completion: float
    submission: float

    def gamma(self, counts: Floats) -> tuple[float, float]:
        """Shape and scale of the sum, given the number of units in each completion. Raises ValueError for no units."""
        n = float(counts.sum())
        if n <= 0:
            raise ValueError("no units")
        variance = self.unit * n + self.completion * float((counts**2).sum()) + self.submission * n * n
        return n * n / variance, variance / n


@dataclass(frozen=True, slots=True)
class Calibration:
    """The components with the names above, in that order."""

    exponents: Component
    mantissas: Component
    margins: Component

    @property
    def components(self) -> tuple[Component, Component, Component]:
        """The components in the order of `NAMES`."""
        return self.exponents, self.mantissas, self.margins


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration and how well it fits: the share of honest submissions with p below each of `AT`, and the worst
    environment of each component."""

    calibration: Calibration
    submissions: int
    at: tuple[float, ...]
    shares: tuple[float, ...]
    worst: tuple[str, str, str]
    inflation: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Units:
    """All units of one component in one observation: each unit's value, class and completion. None counts for more than
    `most` times its level, or `least` where that is larger."""

    values: Floats
    classes: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]
    most: float = np.inf
    least: float = 0.0

    def relative(self, levels: Sequence[float]) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Values divided by their levels, for the judged units, and the completions they belong to."""
        by_class = np.asarray(levels, dtype=np.float64)[self.classes]
        judged = by_class > 0
        most = np.maximum(self.most * by_class[judged], self.least)
        return np.minimum(self.values[judged], most) / by_class[judged], self.owners[judged]


def units_of(observation: Observation) -> tuple[Units, Units, Units]:
    """The units of the three components, in the order of `NAMES`."""
    chunks = [
        (
            part.exponent_mismatches,
            part.mantissa_mean if part.mantissa_mean < MANTISSA_CAP else MANTISSA_CAP,  # NaN too
            _fill(number, len(tokens), observation.chunk),
            c,
        )
        for c, (parts, tokens) in enumerate(zip(observation.chunks, observation.margins, strict=True))
        for number, part in enumerate(parts)
    ]
    table = np.array(chunks, dtype=np.float64).reshape(-1, 4)
    classes, owners = table[:, 2].astype(np.int64), table[:, 3].astype(np.int64)
    margins = np.concatenate([np.empty(0), *observation.margins])
    margins = np.where(margins < LARGEST_MARGIN, margins, LARGEST_MARGIN)  # NaN too
    whose = np.repeat(np.arange(len(observation.margins)), [len(part) for part in observation.margins])
    return (
        Units(table[:, 0], classes, owners),
        Units(table[:, 1], classes, owners, LARGEST_MANTISSA, LEAST_MANTISSA),
        Units(margins, np.zeros(len(margins), dtype=np.int64), whose),
    )


def sums_of(units: Units, levels: Sequence[float], completions: int) -> tuple[Floats, Floats]:
    """By completion: the sum of values relative to their levels, and the number of judged units."""
    relative, owners = units.relative(levels)
    return (
        np.bincount(owners, weights=relative, minlength=completions).astype(np.float64),
        np.bincount(owners, minlength=completions).astype(np.float64),
    )


def _fill(number: int, tokens: int, chunk: int) -> int:
    share = min(chunk, tokens - number * chunk) / chunk
    return next(i for i, most in enumerate(FILLS) if share <= most)
