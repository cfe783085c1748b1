"""What a rollout step reports, and the sums it is made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roles.rl.batch import Row, TrainingGroup, count_tokens, is_usable
from roles.rl.grpo import LossTerms
from roles.rl.ranks import Ranks

_SUMMED = ("loss", "kl", "entropy", "clipped_low", "clipped_high", "clipped_delta")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one rollout step did. Losses, entropy and fractions are means over the step's completion tokens."""

    step: int
    reward: float  # mean over all groups
    reward_used: float  # mean over the groups that taught something; 0 when none did
    groups: int
    groups_used: int
    tokens: int  # completion tokens trained on, once each
    loss: float
    kl: float
    entropy: float  # nats a token
    clipped_low: float  # fraction of tokens whose policy gradient this clip has stopped
    clipped_high: float
    clipped_delta: float
    ratio_max: float
    grad_norm: float  # largest of the step's updates, before clipping
    learning_rate: float  # of the last update
    seconds: float


class Totals:
    """Adds up a step's micro-batches and updates."""

    def __init__(self) -> None:
        """Start a step with nothing in it."""
        self._sums = torch.zeros(len(_SUMMED), dtype=torch.float64)
        self._ratio_max = torch.zeros((), dtype=torch.float64)
        self._updates = 0
        self._grad_norm = 0.0

    def add(self, terms: LossTerms) -> None:
        """Count one micro-batch."""
        values: list[Tensor] = [getattr(terms, name).detach() for name in _SUMMED]
        self._sums += torch.stack(values).double().cpu()
        self._ratio_max = torch.maximum(self._ratio_max, terms.max_ratio.double().cpu())

    def close_update(self, grad_norm: float) -> None:
        """Count one optimizer step."""
        self._updates += 1
        self._grad_norm = max(self._grad_norm, grad_norm)

    def compute_metrics(
        self,
        groups: Sequence[TrainingGroup],
        rows: Sequence[Row],
        *,
        ranks: Ranks,
        step: int,
        learning_rate: float,
        seconds: float,
    ) -> StepMetrics:
        """Join the ranks' sums with what the groups say of themselves."""
        means = ranks.add(self._sums.to(ranks.device)) / max(1, self._updates)
        used = [group for group in groups if is_usable(group)]
        return StepMetrics(
            step=step,
            reward=mean_reward(groups),
            reward_used=mean_reward(used),
            groups=len(groups),
            groups_used=len(used),
            tokens=count_tokens(rows),
            **dict(zip(_SUMMED, means.tolist(), strict=True)),
            ratio_max=ranks.most(self._ratio_max.to(ranks.device)).item(),
            grad_norm=self._grad_norm,
            learning_rate=learning_rate,
            seconds=seconds,
        )


def mean_reward(groups: Sequence[TrainingGroup]) -> float:
    """Mean over all completions: rewards `[0, 1]` and `[1, 1]` -> 0.75; without groups 0."""
    rewards = [reward for group in groups for reward in group.rewards]
    return math.fsum(rewards) / len(rewards) if rewards else 0.0
