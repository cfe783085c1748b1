"""Unearned rewards, and completions that never ended."""

from __future__ import annotations

from dataclasses import replace

from roles.rollouts.schema import RolloutRow
from roles.rules import Reason
from tests.adversarial.attack import assert_only, forged
from tests.builders import make_rollouts, make_world, open_rollouts, spoil


def test_reward_is_inflated__val_15() -> None:
    world = make_world()
    greedy = spoil(world, make_rollouts(world), lambda row: replace(row, reward=0.5))
    assert_only("rewards", Reason.WRONG_REWARD, world, greedy)


def test_completion_is_cut_short() -> None:
    """Half the work, honestly computed as far as it goes."""
    world = make_world()
    made = make_rollouts(world)
    rows = [_cut(row) for row in open_rollouts(world, made).rows]
    assert_only("termination", Reason.BAD_TERMINATION, world, forged(world, made, rows))


def _cut(row: RolloutRow) -> RolloutRow:
    return replace(row, output=row.output[: max(1, len(row.output) // 2)], finish="length")
