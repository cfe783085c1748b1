"""Synthetic observations from a seed: honest noise as engines show it, and the same noise amplified."""

from __future__ import annotations

import numpy as np

from roles.toploc.observation import Observation
from roles.toploc.verify import ProofStatistics


def make_observation(
    rng: np.random.Generator,
    *,
    times: float = 1.0,
    completions: int = 8,
    tokens: int = 128,
    missed: float = 0.028,
    spoiled: int | None = None,
) -> Observation:
    """Noise `times` the honest level, partly shared within a submission; `spoiled` amplifies
    that of one completion alone."""
    shared = times * np.exp(rng.normal(0, 0.05))
    chunks, margins = [], []
    for number in range(completions):
        own = shared * np.exp(rng.normal(0, 0.08)) * (4 if number == spoiled else 1)
        fills = [min(32, tokens - start) / 32 for start in range(0, tokens, 32)]
        chunks.append(
            tuple(
                ProofStatistics(int(rng.poisson(2 * own)), float(1.4 * own * fill**0.5 * rng.gamma(20) / 20), 1.0)
                for fill in fills
            )
        )
        is_missed = rng.random(tokens) < missed * own
        margins.append(np.where(is_missed, rng.exponential(0.02 * own, tokens), 0.0))
    return Observation(tuple(chunks), tuple(margins))


def make_many(
    seed: int, count: int, *, times: float = 1.0, tokens: int = 128, missed: float = 0.028
) -> list[Observation]:
    """Several independent observations."""
    rng = np.random.default_rng(seed)
    return [make_observation(rng, times=times, tokens=tokens, missed=missed) for _ in range(count)]
