"""When a batch is full: order of acceptance, counts, saturation."""

from __future__ import annotations

import pytest

from roles.rl.batch import TrainingGroup, mean_reward
from roles.spec import TrainingSpec
from roles.trainer.closing import ClosedBatch, PooledGroup, close_batch

TRAINING = TrainingSpec(steps=10, batch_groups=3, min_batch=2, max_groups=6, saturated_rounds=2)


def make_group(number: int, *rewards: float) -> PooledGroup:
    completions = tuple((1,) for _ in rewards)
    return PooledGroup("ab" * 32, number, TrainingGroup((1,), completions, rewards, 0, "ab" * 32))


def make_groups(pattern: str) -> list[PooledGroup]:
    """`u` a usable group (rewards 0, 1), `0` one all wrong, `1` one all right."""
    rewards = {"u": (0.0, 1.0), "0": (0.0, 0.0), "1": (1.0, 1.0)}
    return [make_group(number, *rewards[letter]) for number, letter in enumerate(pattern)]


def close(pattern: str, *, rounds_before: int = 0) -> ClosedBatch | None:
    return close_batch(make_groups(pattern), step=4, training=TRAINING, rounds_before=rounds_before)


@pytest.mark.parametrize("pattern", ["", "uu", "0u1u0"])
def test_close_batch__short_of_usable_groups__trn_11(pattern: str) -> None:
    assert close(pattern) is None


def test_close_batch__full_with_enough_usable_ones() -> None:
    batch = close("0u1uuu")
    assert batch is not None
    assert (batch.outcome, batch.usable, len(batch.groups)) == ("full", 3, 5)
    assert [group.number for group in batch.groups] == [0, 1, 2, 3, 4]  # in order; the sixth is left over


def test_close_batch__groups_that_agree_count_in_the_reward() -> None:
    batch = close("1u1uu")
    assert batch is not None
    assert batch.reward == pytest.approx((1 + 0.5 + 1 + 0.5 + 0.5) / 5)


def test_close_batch__most_groups_looked_at_and_enough_usable() -> None:
    batch = close("u0000uuuu")
    assert batch is not None
    assert (batch.outcome, batch.usable, len(batch.groups)) == ("short", 2, 6)


def test_close_batch__saturated_uses_up_only_what_teaches_nothing__trn_12() -> None:
    batch = close("1u1111", rounds_before=0)
    assert batch is not None
    assert (batch.outcome, batch.usable, batch.rounds) == ("saturated", 0, 1)
    assert [group.number for group in batch.groups] == [0, 2, 3, 4, 5]
    assert batch.reward == pytest.approx(5.5 / 6)


def test_is_last__rounds_in_a_row_or_the_last_step() -> None:
    second = close("111111", rounds_before=1)
    assert second is not None
    assert second.is_last(TRAINING)
    first = close("111111")
    assert first is not None
    assert not first.is_last(TRAINING)
    assert ClosedBatch(10, (), "full", 0, 0.5).is_last(TRAINING)


def test_close_batch__a_good_batch_ends_the_row_of_saturated_rounds() -> None:
    batch = close("uuu", rounds_before=1)
    assert batch is not None
    assert batch.rounds == 0


def test_mean_reward__worked_value() -> None:
    assert mean_reward([make_group(0, 0.0, 1.0).training, make_group(1, 1.0, 1.0).training]) == 0.75
    assert mean_reward([]) == 0.0
