"""Advantages against hand-computed values."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.rl.advantages import compute_advantages


@pytest.mark.parametrize(
    ("rewards", "advantages"),
    [
        ([0, 0, 1, 1], [-0.866024, -0.866024, 0.866024, 0.866024]),  # 0.5 / 0.577350, the std of n - 1
        ([1, 0], [0.707106, -0.707106]),
        ([1, 0, 0, 0], [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([0, 0], [0, 0]),
        ([0.1] * 3, [0, 0, 0]),  # whose mean is not 0.1 in floating point
        ([1], [0]),
        ([], []),
    ],
)
def test_compute_advantages__worked_values(rewards: list[float], advantages: list[float]) -> None:
    assert compute_advantages(rewards) == pytest.approx(advantages, abs=1e-5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=32))
def test_compute_advantages__sum_to_zero_with_unit_spread(rewards: list[float]) -> None:
    advantages = compute_advantages(rewards)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-5)
    if max(rewards) - min(rewards) > 0.01:
        assert statistics.stdev(advantages) == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_compute_advantages__refuse_what_is_no_number(reward: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        compute_advantages([0.0, reward])
