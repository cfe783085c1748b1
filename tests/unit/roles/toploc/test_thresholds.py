"""The tightest bounds of single chunks, completions and tokens."""

from __future__ import annotations

import numpy as np
import pytest

from roles.toploc.joined.thresholds import BOUNDS, LEAST, find_bounds, largest_values
from roles.toploc.observation import Observation
from roles.toploc.verify import NOTHING_AGREES, ProofStatistics
from tests.unit.roles.toploc.joined_builders import make_many


def test_largest_values__worked() -> None:
    chunks = ((ProofStatistics(3, 1.5, 1.0),), (ProofStatistics(1, 2.5, 1.0), ProofStatistics(2, NOTHING_AGREES, 0.0)))
    margins = (np.array([0.0, 0.4]), np.array([0.0] * 39 + [9.0]))
    assert list(largest_values(Observation(chunks, margins))) == pytest.approx([3.0, 4095.0, 1.0, 0.2, 9.0])


def test_find_bounds__above_everything_seen_and_wider_for_rarer_refusals() -> None:
    environments = {"a": make_many(1, 30), "b": make_many(2, 30, times=0.5)}
    seen = np.max([largest_values(each) for some in environments.values() for each in some], axis=0)
    near, far = (np.array(find_bounds(environments, one_in=n)) for n in (100, 10**6))
    assert (near >= seen + LEAST).all()
    assert (far > near).any()
    assert (far >= near).all()


@pytest.mark.parametrize("one_in", [20, 100])
def test_find_bounds__honest_submissions_exceed_one_no_oftener_than_asked(one_in: int) -> None:
    bounds = find_bounds({"a": make_many(3, 40)}, one_in=one_in)
    exceeded = [any(np.greater(largest_values(each), bounds)) for each in make_many(4, 400)]
    assert np.mean(exceeded) <= 1 / one_in


def test_find_bounds__of_engines_that_agree_exactly() -> None:
    nothing = tuple((ProofStatistics(0, 0.0, 0.0),) for _ in range(4))
    some = [Observation(nothing, tuple(np.zeros(32) for _ in range(4))) for _ in range(5)]
    assert find_bounds({"a": some}, one_in=1000) == pytest.approx(LEAST)
    assert len(LEAST) == len(BOUNDS)


def test_find_bounds__nothing_was_seen() -> None:
    with pytest.raises(ValueError, match="honest submissions"):
        find_bounds({"a": []}, one_in=1000)
