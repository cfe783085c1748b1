"""The trainer checks again what validators let through, as far as it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dht.errors import Malformed
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile
from roles.trainer.pool import split_groups
from roles.trusted import AdmittedSubmission
from tests.builders import WORKERS, World, make_rollouts, make_world, open_rollouts


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def honest(world: World) -> tuple[RolloutFile, AdmittedSubmission]:
    made = make_rollouts(world)
    row = world.row(made.submission, WORKERS[0])
    return open_rollouts(world, made), AdmittedSubmission(made.submission, row.digest, "00" * 32, (), row)


def test_split_groups__one_a_prompt_in_order(world: World, honest: tuple[RolloutFile, AdmittedSubmission]) -> None:
    file, item = honest
    groups = split_groups(file, item, world.spec)
    assert [group.number for group in groups] == [0, 1]
    assert all(len(group.training.completions) == world.spec.sampling.group_size for group in groups)
    assert groups[1].training.rewards == tuple(row.reward for row in file.rows[4:])
    assert groups[0].training.submission == item.digest


@pytest.mark.parametrize("change", [{"step": 2}, {"index": 5}, {"node": "12D3KooWother"}, {"policy": "00" * 32}])
def test_split_groups__blob_of_another_submission(
    world: World, honest: tuple[RolloutFile, AdmittedSubmission], change: dict[str, object]
) -> None:
    file, item = honest
    with pytest.raises(Malformed, match="another submission"):
        split_groups(replace(file, **change), item, world.spec)  # type: ignore[arg-type]


def test_split_groups__a_row_in_another_group(world: World, honest: tuple[RolloutFile, AdmittedSubmission]) -> None:
    file, item = honest
    rows = (*file.rows[:1], replace(file.rows[1], group=1), *file.rows[2:])
    with pytest.raises(Malformed, match="stand together"):
        split_groups(replace(file, rows=rows), item, world.spec)


def test_split_groups__rows_missing(world: World, honest: tuple[RolloutFile, AdmittedSubmission]) -> None:
    file, item = honest
    with pytest.raises(Malformed, match="number of completions"):
        split_groups(replace(file, rows=file.rows[:4]), item, world.spec)


def test_rollout_limits__from_the_spec(world: World) -> None:
    limits = rollout_limits(world.spec, 100)
    assert limits.max_rows == 8
    assert limits.max_output_tokens == world.spec.sampling.max_tokens
    assert limits.max_proof_bytes == 2 * 2 * 129  # 44 tokens are two chunks of 32
