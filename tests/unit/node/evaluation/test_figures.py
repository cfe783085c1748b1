"""Pass rates, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from node.evaluation.figures import compare, estimate_pass_at_k, estimate_score, pass_at_k, passes, wilson


@pytest.mark.parametrize(
    ("samples", "passed", "k", "chance"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 1, 4, 1.0)],
)
def test_pass_at_k__by_counting(samples: int, passed: int, k: int, chance: float) -> None:
    assert pass_at_k(samples, passed, k) == pytest.approx(chance)


def test_pass_at_k__more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 8 samples"):
        pass_at_k(4, 1, 8)


def test_passes__partial_credit_is_no_pass() -> None:
    assert passes([1.0, 0.99, 0.0]) == 1


def test_wilson__by_hand() -> None:
    """Wilson (1927): 5 of 10 lie between 23.7 % and 76.3 %."""
    found = wilson(5, 10)
    assert [found.low, found.high] == pytest.approx([0.2366, 0.7634], abs=1e-4)


def test_estimate_pass_at_k__bounds_hold_the_value_and_repeat() -> None:
    table = {problem: [1.0, 0.0] if problem % 2 else [0.0, 0.0] for problem in range(100)}
    found = estimate_pass_at_k(table, 1)
    assert found.value == pytest.approx(0.25)
    assert found.low < 0.25 < found.high
    assert found == estimate_pass_at_k(table, 1)


def test_estimate_pass_at_k__unanimous_is_not_certain() -> None:
    found = estimate_pass_at_k({problem: [1.0] for problem in range(10)}, 1)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.7225, abs=1e-3)


def test_estimate_score__counts_partial_credit() -> None:
    assert estimate_score({0: [0.5, 0.5], 1: [1.0, 0.0]}).value == 0.5


def test_compare__pairs_problems() -> None:
    """Both are far from certain by themselves; problem by problem one is plainly better."""
    ours = {problem: [float(problem % 2)] * 4 for problem in range(200)}
    theirs = {problem: [float(problem % 2)] * 3 + [1.0] for problem in range(200)}
    found = compare(ours, theirs, lambda scores: passes(scores) / len(scores))
    assert found.value == pytest.approx(0.125)
    assert found.low > 0


def test_compare__nothing_in_common_is_refused() -> None:
    with pytest.raises(ValueError, match="no problems"):
        compare({0: [1.0]}, {1: [1.0]}, max)
