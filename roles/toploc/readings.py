"""What the validator's own logits say of each token of a submission: its margin, its probability, and the
total probability of unlikely tokens there. Logits are computed in parts and never all held: 8 x 128 tokens
of 49,152 would be 200 MB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roles.inference.engine import Prefill
from roles.inference.sampling import SamplingSettings, token_margins
from roles.toploc.sampling_check import LOW, Margins

BLOCK_ELEMENTS = 1 << 22
"""Logits processed at once: 16 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Tokens of one completion, each with the seed and the position it was drawn with; all three are equally long."""

    tokens: Sequence[int]
    seeds: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Readings of one completion, float64 `[T]` each: by how much each token misses being the seeded choice; its
    log-probability under `softmax(logits / T)`; and, at its position, the probability of drawing any token whose own
    probability is below 0.1."""

    margins: Margins
    logprobs: Margins
    unlikely: Margins


def read_tokens(
    prefills: Sequence[Prefill],
    completions: Sequence[Sampled],
    settings: SamplingSettings,
    *,
    vocabulary: int,
    most: int = BLOCK_ELEMENTS,
) -> list[Readings]:
    """Read completions whose states came from one engine, which must still hold the same weights.
    Holds at most `most` logits."""
    if not prefills:
        return []
    states = torch.cat([item.states for item in prefills])
    tokens, seeds, positions = (
        torch.tensor([value for item in completions for value in getattr(item, name)], device=states.device)
        for name in ("tokens", "seeds", "positions")
    )
    block = max(1, most // vocabulary)
    parts = [
        _read(prefills[0].head(states[rows]), tokens[rows], seeds[rows], positions[rows], settings)
        for rows in (slice(start, start + block) for start in range(0, len(states), block))
    ]
    joined = torch.cat(parts, dim=1).double().cpu().numpy()
    edges = np.cumsum([len(item.tokens) for item in completions])[:-1]
    return [Readings(*rows) for rows in zip(*(np.split(row, edges) for row in joined), strict=True)]


def _read(
    logits: torch.Tensor, tokens: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, settings: SamplingSettings
) -> torch.Tensor:
    """Margins, log-probabilities and unlikely mass of one part: float32 `[3, rows]`."""
    margins = token_margins(logits, tokens, seeds, positions, settings)
    scaled = logits if settings.temperature in (0.0, 1.0) else logits / settings.temperature
    total = scaled.logsumexp(-1)
    logprobs = scaled.gather(1, tokens[:, None])[:, 0] - total
    rows, columns = (scaled >= (total + float(np.log(LOW)))[:, None]).nonzero(as_tuple=True)
    likely = torch.zeros_like(total).index_add(0, rows, (scaled[rows, columns] - total[rows]).exp())
    return torch.stack([margins.to(total.dtype), logprobs, (1 - likely).clamp(min=0)])
