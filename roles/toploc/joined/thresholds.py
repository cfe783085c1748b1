"""The tightest bounds for single chunks, completions and tokens at a chosen rate of false positives.

The largest values of a submission are assumed to be Gumbel distributed (the limit for the maximum of many light-tailed
values), fitted by the method of moments, in the environment where the bound comes out highest. No bound is below the
largest value seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from roles.toploc.joined.calibration import GRAINS, MANTISSA_CAP, Floats
from roles.toploc.observation import Observation
from roles.toploc.sampling_check import summarise_margins

BOUNDS = ("exponent_mismatches", "mantissa_mean", "mantissa_median", "margin_mean", "margin_largest")
LEAST = (GRAINS[0], GRAINS[1], 0.5, GRAINS[2] / 32, GRAINS[2])
"""Allowance even for an engine that agrees exactly; mantissas of 7 bits."""
_EULER = 0.5772156649015329
_DOUBT = 2.0
_MOST_MARGIN = 1e6
"""Margin of a token that is NaN or off the support; the judge does not clip single margins either."""


def largest_values(observation: Observation) -> tuple[float, ...]:
    """The largest of each statistic in a submission, in the order of `BOUNDS`: of chunks, of completions, of tokens."""
    chunks = [chunk for parts in observation.chunks for chunk in parts]
    margins = [summarise_margins(part) for part in observation.margins]
    return (
        max((float(chunk.exponent_mismatches) for chunk in chunks), default=0.0),
        max((min(chunk.mantissa_mean, MANTISSA_CAP) for chunk in chunks), default=0.0),
        max((min(chunk.mantissa_median, MANTISSA_CAP) for chunk in chunks), default=0.0),
        max((each.mean_clipped for each in margins), default=0.0),
        max((min(each.largest, _MOST_MARGIN) for each in margins), default=0.0),
    )


def find_bounds(
    environments: Mapping[str, Sequence[Observation]], *, one_in: int, least: Sequence[float] = LEAST
) -> tuple[float, ...]:
    """Bounds in the order of `BOUNDS`, such that at most one honest submission in `one_in` exceeds any of them. Each is
    at least `least` above the largest value seen."""
    by_environment = [np.array([largest_values(each) for each in some]) for some in environments.values() if some]
    if not by_environment:
        raise ValueError("bounds need honest submissions")
    return tuple(
        max(max(_quantile(table[:, k], len(BOUNDS) * one_in), float(table[:, k].max())) for table in by_environment)
        + least[k]
        for k in range(len(BOUNDS))
    )


def _quantile(maxima: Floats, one_in: int) -> float:
    """The value that one in `one_in` exceeds, with the spread raised by two standard errors."""
    spread = float(maxima.std(ddof=1)) if len(maxima) > 1 else float(maxima.max())
    beta = spread * (1 + _DOUBT / math.sqrt(2 * max(1, len(maxima) - 1))) * math.sqrt(6) / math.pi
    return float(maxima.mean()) - _EULER * beta - beta * math.log(-math.log1p(-1 / one_in))
