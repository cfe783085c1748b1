"""How much work a head asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.messages import SHARE_ALL
from roles.spec import SamplingSpec, TrainingSpec
from roles.trainer.demand import Demand, estimate_usable, open_demand, raised_limit
from tests.builders import make_spec

SPEC = make_spec(
    sampling=SamplingSpec(groups_per_submission=4),
    training=TrainingSpec(batch_groups=16, min_batch=4, max_groups=64, initial_limit=8),
)


def test_open_demand__nobody_seen_yet() -> None:
    assert open_demand(SPEC, workers=0, usable_fraction=0.5, in_hand=0) == Demand(8, SHARE_ALL)


def test_open_demand__worked_values() -> None:
    # 16 usable groups, half of all are: 1.25 x 16 / 0.5 = 40 groups = 10 indices
    assert open_demand(SPEC, workers=2, usable_fraction=0.5, in_hand=0) == Demand(5, SHARE_ALL)
    assert open_demand(SPEC, workers=1, usable_fraction=0.5, in_hand=0) == Demand(8, SHARE_ALL)  # the spec's bound
    many = open_demand(SPEC, workers=100, usable_fraction=0.5, in_hand=0)
    assert many.limit == 1
    assert abs(many.share / SHARE_ALL - 0.1) < 1e-9


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_open_demand__few_workers_are_all_asked_however_little_is_wanted(workers: int) -> None:
    assert open_demand(SPEC, workers=workers, usable_fraction=1.0, in_hand=1000) == Demand(1, SHARE_ALL)


def test_open_demand__a_share_admits_eight_indices_at_least() -> None:
    demand = open_demand(SPEC, workers=1000, usable_fraction=1.0, in_hand=1000)
    assert demand.share * 1000 / SHARE_ALL == pytest.approx(8)


def test_open_demand__what_is_in_hand_is_not_asked_for_again() -> None:
    # 20 - 12 lacking, half usable: 16 groups = 4 indices
    assert open_demand(SPEC, workers=2, usable_fraction=0.5, in_hand=12) == Demand(2, SHARE_ALL)


def test_open_demand__fresh_rollouts_keep_coming() -> None:
    assert open_demand(SPEC, workers=2, usable_fraction=0.5, in_hand=1000).limit == 1


def test_raised_limit__only_while_what_is_handed_in_does_not_suffice() -> None:
    opened = Demand(2, SHARE_ALL)
    enough = raised_limit(SPEC, opened, workers=2, usable=8, pending=16, usable_fraction=0.5)
    assert enough == 2
    # 4 lacking: 1.25 x 4 / 0.5 = 10 groups = 2 indices for each of two workers
    assert raised_limit(SPEC, opened, workers=2, usable=8, pending=8, usable_fraction=0.5) == 4


def test_estimate_usable__prior_and_floor() -> None:
    assert estimate_usable(0, 0) == 0.5
    assert estimate_usable(3, 6) == 0.5
    assert estimate_usable(0, 1000) == 0.05


@given(st.integers(0, 100_000), st.floats(0.05, 1), st.floats(0, 1000))
def test_open_demand__always_in_bounds(workers: int, fraction: float, in_hand: float) -> None:
    demand = open_demand(SPEC, workers=workers, usable_fraction=fraction, in_hand=in_hand)
    assert 1 <= demand.limit <= SPEC.training.initial_limit
    assert 1 <= demand.share <= SHARE_ALL


@given(st.integers(1, 999_999), st.integers(1, SHARE_ALL), st.integers(0, 16), st.integers(0, 1000))
def test_raised_limit__never_falls(limit: int, share: int, usable: int, pending: int) -> None:
    raised = raised_limit(SPEC, Demand(limit, share), workers=3, usable=usable, pending=pending, usable_fraction=0.3)
    assert limit <= raised <= limit + SPEC.training.initial_limit
