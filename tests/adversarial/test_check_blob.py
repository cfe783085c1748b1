"""Blobs that are not what was signed, or not a rollout file. Each is stopped by exactly one check."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from roles.rollouts.schema import RolloutFile, RolloutLimits, RolloutRow, write_rollouts
from roles.rules import Reason
from tests.adversarial.attack import assert_only, judge
from tests.builders import make_rollouts, make_world, open_rollouts, repack, spoil


def test_size_signed_is_not_the_blobs() -> None:
    world = make_world()
    made = make_rollouts(world)
    lying = repack(made, made.blob, size=len(made.blob) + 1)
    assert_only("size", Reason.WRONG_SIZE, world, lying)


def test_nan_hidden_in_the_file() -> None:
    """A reader that checks nothing would let it through: no later check looks at reported log-probabilities again."""
    world = make_world()
    nan = spoil(
        world, make_rollouts(world), lambda row: replace(row, output_logprobs=(float("nan"),) * len(row.output))
    )
    assert_only("schema", Reason.SCHEMA, world, nan, lax={"read": read_anything})


@pytest.mark.parametrize("size", [0, 4, 11, 1000])
def test_truncated_file(size: int) -> None:
    world = make_world()
    made = make_rollouts(world)
    found = judge(world, repack(made, made.blob[:size]))
    assert (found.outcome, found.reason) == ("fault", Reason.SCHEMA)


def test_temperature_is_not_the_runs() -> None:
    world = make_world()
    cold = spoil(world, make_rollouts(world), lambda row: replace(row, temperature=0.5))
    assert_only("bounds", Reason.BOUNDS, world, cold)


def test_a_completion_is_left_out() -> None:
    """Dropping a bad completion would raise the group's mean."""
    world = make_world()
    made = make_rollouts(world)
    file = open_rollouts(world, made)
    rows = file.rows[:-1]
    short = repack(made, write_rollouts(replace(file, rows=rows)), tokens=sum(len(row.output) for row in rows))
    assert_only("bounds", Reason.BOUNDS, world, short)


def test_units_are_inflated__val_06() -> None:
    world = make_world()
    made = make_rollouts(world)
    assert_only("units", Reason.WRONG_UNITS, world, repack(made, made.blob, tokens=made.submission.tokens + 1))


def read_anything(data: bytes, limits: RolloutLimits) -> RolloutFile:
    """A reader without checks."""
    columns = pq.read_table(io.BytesIO(data)).to_pylist()
    rows = tuple(
        RolloutRow(
            group=item["group"],
            problem_id=item["problem_id"],
            prompt=tuple(item["prompt_tokens"]),
            output=tuple(item["output_tokens"]),
            reward=item["reward"],
            seed=item["seed"],
            temperature=item["temperature"],
            finish=item["finish_reason"],
            proof=item["proof"],
            output_logprobs=tuple(item["output_logprobs"]),
            target_length=item["target_length"],
        )
        for item in columns
    )
    first = columns[0]
    return RolloutFile(
        run=first["run"],
        node=first["node"],
        step=first["step"],
        policy=first["policy"],
        policy_step=first["policy_step"],
        index=first["index"],
        rows=rows,
    )
