"""The metrics that a step reports, compared with hand-computed values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from roles.rl.batch import TrainingGroup, select_rows
from roles.rl.grpo import LossTerms
from roles.rl.metrics import StepMetrics, Totals
from roles.rl.objectives import Tokens
from roles.rl.ranks import join_ranks
from tests.unit.roles.rl.groups import make_group


def add(totals: Totals, ratios: Sequence[float], *, each: float = 0.0) -> None:
    """A micro-batch of tokens with those ratios, and `each` of the means."""
    none = torch.zeros(len(ratios))
    given = Tokens(
        new=torch.tensor(ratios).log(),
        old=none,
        behaviour=None,
        advantages=none,
        sequence=none.long(),
        sequences=1,
        mask=torch.ones(len(ratios)),
    )
    totals.add(LossTerms(*[torch.tensor(each)] * 6), given)


def said(totals: Totals, groups: Sequence[TrainingGroup] | None = None) -> StepMetrics:
    groups = groups or [make_group()]
    alone = join_ranks("cpu")
    return totals.compute_metrics(groups, select_rows(groups), ranks=alone, step=1, learning_rate=1e-4, seconds=1.0)


def test_effective_sample__worked_value() -> None:
    totals = Totals()
    add(totals, [1.0, 3.0])
    assert said(totals).effective_sample == pytest.approx(0.8)  # 4^2 / (2 * 10)


def test_ratio_quantiles__one_in_a_hundred_the_median_and_all_but_one() -> None:
    totals = Totals()
    add(totals, [0.5] * 2 + [1.0] * 96 + [2.0] * 2)
    metrics = said(totals)
    assert (metrics.ratio_low, metrics.ratio_median, metrics.ratio_high) == pytest.approx((0.5, 1.0, 2.0), rel=1e-2)


def test_mismatch__is_of_the_first_update() -> None:
    totals = Totals()
    add(totals, [1.0, 1.0])
    totals.close_update(0.1)
    add(totals, [2.0, 2.0])
    assert said(totals).mismatch == 0.0


def test_means__are_over_the_tokens_trained_on_but_for_the_loss() -> None:
    """Sums were divided by the tokens of all groups, of which half agree and are not trained on."""
    totals = Totals()
    add(totals, [1.0], each=0.1)
    metrics = said(totals, [make_group(), make_group(rewards=(1.0,) * 4)])
    assert metrics.loss == pytest.approx(0.1)
    clipped = (metrics.clipped_low, metrics.clipped_high, metrics.clipped_delta)
    assert (metrics.kl, metrics.entropy, *clipped) == pytest.approx((0.2,) * 5)
