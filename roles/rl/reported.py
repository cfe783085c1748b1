"""Log-probabilities that workers report beside those that the trainer computes: what workers' engines and ours differ by.

For the alarm on it alone, and never for training: it is a peer's word.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from roles.rl.plan import Pass
from roles.turns.spans import own_tokens

MOST = 1.0
"""Nats that one token counts for: a peer that reports nonsense is seen, and does not hide what the others report."""


def compare_reported(one: Pass, scores: Tensor, *, steps: Collection[int]) -> Tensor:
    """`|reported - score|` of each token that was reported, by rows whose policy is one of `steps`: those that `scores`, (N,),
    are of. Reported -1, -2 and -9, scores -1.5, -2 and -3: 0.5, 0 and 1."""
    told = [
        value
        for row in one.rows
        for value in (
            own_tokens(row.reported, row.turns)
            if row.reported and row.policy_step in steps
            else (math.nan,) * row.learned
        )
    ]
    apart = (torch.tensor(told, device=scores.device) - scores).abs()
    return apart[(one.batch.mask > 0) & ~apart.isnan()].clamp(max=MOST)
