"""The metrics that a rollout step reports, and the sums they are computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roles.rl.batch import Row, TrainingGroup, count_all_tokens, count_tokens, is_usable, mean_reward
from roles.rl.grpo import LossTerms
from roles.rl.objectives import Tokens
from roles.rl.ranks import Ranks

_SUMMED = ("loss", "kl", "entropy", "clipped_low", "clipped_high", "clipped_delta")
_BINS, _WIDEST = 1001, 5.0
"""Histogram of log ratios in [-5, 5]: quantiles to 1% over all ranks without gathering tokens.
The middle bin is ratio 1."""
_QUANTILES = (0.01, 0.5, 0.99)


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
    clipped_low: float  # fraction of tokens whose policy gradient this bound stopped
    clipped_high: float
    clipped_delta: float
    ratio_max: float
    ratio_low: float  # quantiles of the importance ratio: 1%, 50%, 99%
    ratio_median: float
    ratio_high: float
    effective_sample: float  # (sum r)**2 / (n sum r**2): 1 on policy, towards 0 as few tokens come to dominate
    # mean over the groups used: number of updates between the rollouts' policies and the weights before the step
    staleness: float
    # mean |log pi - log pi_old| before the first update, with equal weights: numerical differences only
    mismatch: float
    reported_mismatch: float  # mean |log pi as the worker reports it - as computed here|, if its policy was scored
    drift: float  # mean (log pi_before - log pi_behaviour)**2; 0 where the loss does not need it
    unscored: int  # completions whose own policy is no longer here: they are compared with the current one
    grad_norm: float  # largest of the step's updates, before clipping
    learning_rate: float  # of the last update
    seconds: float
    tokens_per_second: float


class Totals:
    """Accumulates one rank's micro-batches and updates of a step."""

    def __init__(self, *, equal_weights: bool = True) -> None:
        """Start an empty step. `equal_weights`: before the first update, `new` and `old` are of the same weights."""
        self._equal_weights = equal_weights
        self._sums = torch.zeros(len(_SUMMED), dtype=torch.float64)
        self._ratios = torch.zeros(3, dtype=torch.float64)  # count, sum, sum of squares
        self._mismatch = torch.zeros(2, dtype=torch.float64)  # count and sum, as in the next two
        self._drift = torch.zeros(2, dtype=torch.float64)
        self._reported = torch.zeros(2, dtype=torch.float64)
        self._bins = torch.zeros(_BINS, dtype=torch.float64)
        self._ratio_max = torch.zeros((), dtype=torch.float64)
        self._updates = 0
        self._grad_norm = 0.0

    def add(self, terms: LossTerms, given: Tokens) -> None:
        """Add one micro-batch."""
        values: list[Tensor] = [getattr(terms, name).detach() for name in _SUMMED]
        self._sums += torch.stack(values).double().cpu()
        counts = given.mask > 0
        logs = (given.new.detach() - given.old)[counts].double().cpu()
        if not len(logs):
            return
        ratio = logs.clamp(-20, 20).exp()
        self._ratio_max = torch.maximum(self._ratio_max, ratio.max())
        self._bins += torch.histc(logs.clamp(-_WIDEST, _WIDEST), _BINS, -_WIDEST, _WIDEST)
        self._ratios += torch.cat([_count_and_sum(ratio), ratio.square().sum().unsqueeze(0)])
        if self._updates == 0 and self._equal_weights:
            self._mismatch += _count_and_sum(logs.abs())
        if given.behaviour is not None:
            self._drift += _count_and_sum((given.old - given.behaviour)[counts].double().cpu().square())

    def compare(self, apart: Tensor) -> None:
        """Add the differences, token by token, between workers' reports and our values (`roles.rl.reported`)."""
        self._reported += _count_and_sum(apart.double().cpu())

    def close_update(self, grad_norm: float) -> None:
        """Add one optimizer step."""
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
        unscored: int = 0,
    ) -> StepMetrics:
        """Combine the ranks' sums with the statistics of the groups."""
        means = ranks.add(self._sums.to(ranks.device)) / max(1, self._updates)
        count, ratios, squares = ranks.add(self._ratios.to(ranks.device)).tolist()
        used = [group for group in groups if is_usable(group)]
        tokens = count_tokens(rows)
        # the loss is a mean over the tokens of all groups; the other metrics are over those trained on
        whole = count_all_tokens(groups) / max(1, tokens)
        sums = dict(zip(_SUMMED, means.tolist(), strict=True))
        low, median, high = _quantiles(ranks.add(self._bins.to(ranks.device)).cpu())
        return StepMetrics(
            step=step,
            reward=mean_reward(groups),
            reward_used=mean_reward(used),
            groups=len(groups),
            groups_used=len(used),
            tokens=tokens,
            **{name: value if name == "loss" else value * whole for name, value in sums.items()},
            ratio_max=ranks.most(self._ratio_max.to(ranks.device)).item(),
            ratio_low=low,
            ratio_median=median,
            ratio_high=high,
            effective_sample=ratios**2 / (count * squares) if squares else 1.0,
            staleness=math.fsum(step - 1 - group.policy_step for group in used) / max(1, len(used)),
            mismatch=_mean_over(ranks, self._mismatch),
            reported_mismatch=_mean_over(ranks, self._reported),
            drift=_mean_over(ranks, self._drift),
            unscored=unscored,
            grad_norm=self._grad_norm,
            learning_rate=learning_rate,
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
        )


def _count_and_sum(values: Tensor) -> Tensor:
    return torch.stack([torch.tensor(float(len(values)), dtype=torch.float64), values.sum()])


def _mean_over(ranks: Ranks, count_and_sum: Tensor) -> float:
    count, total = ranks.add(count_and_sum.to(ranks.device)).tolist()
    return float(total / max(1.0, count))


def _quantiles(bins: Tensor) -> list[float]:
    """Quantiles of the ratio from the histogram of its logarithm; 1 for an empty one."""
    reached = bins.cumsum(0)
    if not reached[-1]:
        return [1.0] * len(_QUANTILES)
    places = torch.searchsorted(reached, reached[-1] * torch.tensor(_QUANTILES, dtype=reached.dtype))
    return [math.exp((place + 0.5) / _BINS * 2 * _WIDEST - _WIDEST) for place in places.tolist()]
