"""The trainer checks again what validators let through, as far as it can."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dht.errors import Malformed
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile
from roles.rules import Reason
from roles.spec import CheckSpec
from roles.trainer.pool import Pool, split_groups
from roles.trusted import AdmittedSubmission
from tests.builders import (
    VALIDATORS,
    WORKERS,
    MemoryRelays,
    World,
    make_rollouts,
    make_spec,
    make_verdict,
    make_world,
    open_rollouts,
)
from tests.unit.roles.validator_network import ValidatorNetwork


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


def test_split_groups__what_the_worker_reports_of_all_its_rows(
    world: World, honest: tuple[RolloutFile, AdmittedSubmission]
) -> None:
    file, item = honest
    rows = (*file.rows[:-1], replace(file.rows[-1], output_logprobs=None))
    first, second = (group.training for group in split_groups(replace(file, rows=rows), item, world.spec))
    assert first.reported == tuple(row.output_logprobs for row in file.rows[:4])
    assert second.reported == ()


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


async def test_run__what_is_accepted_waits_for_audits_and_a_fault_keeps_it_out(tmp_path: Path) -> None:
    world = make_world(make_spec(checks=CheckSpec(audit_rate=100, audit_window=60)))
    relays, now = MemoryRelays(), [0.0]
    observer = ValidatorNetwork(world.spec, tmp_path).eye
    pool = Pool(
        spec=world.spec,
        trusted=world.trusted,
        observer=observer,
        relays=relays,
        vocabulary=world.engine.vocabulary,
        monotonic=lambda: now[0],
    )
    honest, false = make_rollouts(world), make_rollouts(world, WORKERS[1])
    for made, key in ((honest, WORKERS[0]), (false, WORKERS[1])):
        await relays.put(made.blob)
        world.trusted.admit_submission(world.row(made.submission, key))
        for validator in VALIDATORS[:2]:
            world.trusted.admit_verdict(world.row(make_verdict(made.submission, audited=False), validator))
    running = asyncio.create_task(pool.run())
    pool.take_accepted()
    fault = make_verdict(false.submission, outcome="fault", reason=int(Reason.PROOF_MISMATCH))
    world.trusted.admit_verdict(world.row(fault, VALIDATORS[2]))
    now[0] = 59.0
    pool.take_accepted()
    assert not list(pool.groups(1))
    now[0] = 60.0
    async with asyncio.timeout(20):
        while not pool.is_here(honest.digest):
            observer.wake()
            await asyncio.sleep(0.01)
    assert {group.submission for group in pool.groups(1)} == {honest.digest}
    assert not pool.is_here(false.digest)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
