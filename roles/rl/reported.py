"""Compares the log-probabilities that workers report with those that the trainer computes, to show how engines differ.

Used only for an alarm, never for training, because it is a peer's claim.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from roles.rl.plan import Pass
from roles.turns.spans import own_tokens

MOST = 1.0
"""Maximum nats that one token counts: a peer that reports nonsense is noticed but does not hide the other reports."""


def compare_reported(one: Pass, scores: Tensor, *, steps: Collection[int]) -> Tensor:
    """`|reported - score|` of each reported token, for rows whose policy is one of `steps`, which `scores`, (N,),
    belong to. Reported -1, -2 and -9, scores -1.5, -2 and -3: 0.5, 0 and 1."""
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
