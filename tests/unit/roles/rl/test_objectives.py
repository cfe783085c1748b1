"""Each off-policy objective and its gradient, compared with hand-computed values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from roles.rl.objectives import BOUNDS, CORRECTED, OBJECTIVES, Clips, TokenLoss, Tokens


def make_tokens(
    new: list[float], *, old: list[float], advantages: list[float], rho: list[float] | None = None, rows: int = 1
) -> Tokens:
    """Tokens of the given probabilities. `rho` is pi_before / pi_behaviour; rows are of equal length."""
    logs = torch.tensor(new, dtype=torch.float64).log().requires_grad_()
    before = torch.tensor(old, dtype=torch.float64).log()
    behaviour = None if rho is None else before - torch.tensor(rho, dtype=torch.float64).log()
    each = len(new) // rows
    return Tokens(
        new=logs,
        old=before,
        behaviour=behaviour,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        sequence=torch.arange(rows).repeat_interleave(each),
        sequences=rows,
        mask=torch.ones(len(new), dtype=torch.float64),
    )


def judge(name: str, tokens: Tokens, *, eps: float = 0.2, delta: float | None = 4.0) -> tuple[TokenLoss, list[float]]:
    """The loss with the objective's own bounds, and its gradient over the log-probabilities."""
    low, high = BOUNDS[name]
    judged = OBJECTIVES[name](tokens, Clips(eps, delta, low, high))
    (slope,) = torch.autograd.grad(judged.loss.sum(), tokens.new)
    return judged, listed(slope)


def listed(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach()]


def test_grpo__a_wild_token_of_a_bad_answer_is_bounded_by_delta_alone() -> None:
    """A < 0, r = 100."""
    bounded, slope = judge("grpo", make_tokens([0.5], old=[0.005], advantages=[-1.0]))
    assert listed(bounded.loss) == pytest.approx([4.0])
    assert slope == [0.0]
    assert listed(bounded.delta) == [True]
    unbounded, slope = judge("grpo", make_tokens([0.5], old=[0.005], advantages=[-1.0]), delta=None)
    assert listed(unbounded.loss) == pytest.approx([100.0])
    assert slope == pytest.approx([100.0])


def test_tis__the_correction_is_truncated_at_two() -> None:
    """rho 3 -> 2, rho 0.5 stays; each times the two-sided term: r 1 -> -1, r 1.5 with A 1 -> -1.2 without a gradient."""
    tokens = make_tokens([0.2, 0.2, 0.3], old=[0.2, 0.2, 0.2], advantages=[1.0, 1.0, 1.0], rho=[3.0, 0.5, 3.0])
    judged, slope = judge("tis", tokens)
    assert listed(judged.loss) == pytest.approx([-2.0, -0.5, -2.4])
    assert slope == pytest.approx([-2.0, -0.5, 0.0])
    assert listed(judged.high) == [False, False, True]


def test_tis__the_correction_has_a_lower_bound_where_the_run_names_one() -> None:
    tokens = make_tokens([0.2, 0.2], old=[0.2, 0.2], advantages=[1.0, 1.0], rho=[0.1, 0.7])
    assert listed(OBJECTIVES["tis"](tokens, Clips(low=0.5, high=2.0)).loss) == pytest.approx([-0.5, -0.7])


def test_icepop__tokens_outside_the_band_teach_nothing() -> None:
    tokens = make_tokens([0.2] * 4, old=[0.2] * 4, advantages=[1.0, 1.0, -1.0, 1.0], rho=[2.0, 6.0, 0.4, 0.5])
    judged, slope = judge("icepop", tokens)
    assert listed(judged.loss) == pytest.approx([-2.0, 0.0, 0.0, -0.5])
    assert slope == pytest.approx([-2.0, 0.0, 0.0, -0.5])
    assert (listed(judged.low), listed(judged.high)) == ([False, False, True, False], [False, True, False, False])


def test_cispo__the_weight_is_bounded_and_no_token_is_dropped() -> None:
    """-sg[min(r, 5)] A log pi: r 2 and r 100, with pi e^-1."""
    one = math.exp(-1)
    tokens = make_tokens([one, one, one], old=[one / 2, one / 100, one / 100], advantages=[1.0, 1.0, -1.0])
    judged, slope = judge("cispo", tokens)
    assert listed(judged.loss) == pytest.approx([2.0, 5.0, -5.0])
    assert slope == pytest.approx([-2.0, -5.0, 5.0])
    assert not judged.low.any()
    assert not judged.high.any()


def test_gspo__a_sequence_has_one_ratio_the_geometric_mean() -> None:
    """r (2, 8) -> s 4, clipped to 1.0004 for A 1; r (1, 1) -> s 1; for A -1 s 4 is not clipped: 4, shared gradient 4 / 2."""
    tokens = make_tokens(
        [0.2, 0.8, 0.3, 0.3, 0.2, 0.8],
        old=[0.1, 0.1, 0.3, 0.3, 0.1, 0.1],
        advantages=[1.0, 1.0, 1.0, 1.0, -1.0, -1.0],
        rows=3,
    )
    judged, slope = judge("gspo", tokens)
    assert listed(judged.loss) == pytest.approx([-1.0004, -1.0004, -1.0, -1.0, 4.0, 4.0])
    assert slope == pytest.approx([0.0, 0.0, -1.0, -1.0, 4.0, 4.0])
    assert listed(judged.high) == [True, True, False, False, False, False]


def test_dppo__the_probability_counts_and_not_the_ratio() -> None:
    """0.3 -> 0.6 moved by 0.3 the way A wants: out. 0.01 -> 0.05 is r 5, and in. 0.6 -> 0.3 with A 1: to be brought back."""
    tokens = make_tokens(
        [0.6, 0.05, 0.3, 0.3, 0.6], old=[0.3, 0.01, 0.6, 0.6, 0.3], advantages=[1.0, 1.0, 1.0, -1.0, -1.0]
    )
    judged, slope = judge("dppo", tokens)
    assert listed(judged.loss) == pytest.approx([0.0, -5.0, -0.5, 0.0, 2.0])
    assert slope == pytest.approx([0.0, -5.0, -0.5, 0.0, 2.0])
    assert (listed(judged.low), listed(judged.high)) == (
        [False, False, False, True, False],
        [True, False, False, False, False],
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives__on_policy_all_have_the_same_gradient(name: str) -> None:
    """Where nothing is off policy, each is the plain policy gradient -A."""
    rho = [1.0, 1.0] if name in CORRECTED else None
    _, slope = judge(name, make_tokens([0.2, 0.4], old=[0.2, 0.4], advantages=[1.0, -0.5], rho=rho, rows=2))
    assert slope == pytest.approx([-1.0, 0.5])


@pytest.mark.parametrize("name", sorted(CORRECTED))
def test_objectives__a_correction_needs_the_rollouts_own_policy(name: str) -> None:
    with pytest.raises(ValueError, match="own policy"):
        judge(name, make_tokens([0.2], old=[0.2], advantages=[1.0]))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives__a_token_that_became_impossible_gives_a_finite_loss(name: str) -> None:
    """In fp32, as weights are trained: e^500 is infinite there."""
    known = make_tokens([0.9], old=[0.9], advantages=[-1.0], rho=[1.0])
    new, old = (torch.tensor([value], requires_grad=True) for value in (-0.1, -500.0))
    judged, slope = judge(name, replace(known, new=new, old=old, behaviour=torch.tensor([0.0])))
    assert math.isfinite(listed(judged.loss)[0])
    assert math.isfinite(slope[0])
