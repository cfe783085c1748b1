"""The trainer re-checks what validators accepted, as far as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dht.encoding import ZERO_DIGEST
from dht.errors import Malformed
from dht.identity import NodeKey
from roles.messages import SHARE_ALL, OpenStep, Submission
from roles.observer import Observer
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile
from roles.rules import Reason
from roles.spec import CheckSpec
from roles.trainer.pool import HELD_UP_SECONDS, Pool, split_groups
from roles.trusted import AdmittedSubmission
from roles.worker.generation import submission_digest
from tests.builders import (
    VALIDATORS,
    WORKERS,
    MemoryRelays,
    World,
    make_head,
    make_rollouts,
    make_spec,
    make_submission,
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
def test_split_groups__blob_of_another_submission__trn_06(
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


def make_pool(world: World, observer: Observer, relays: MemoryRelays, *, monotonic: Callable[[], float]) -> Pool:
    """A pool of this world's submissions."""
    return Pool(
        trusted=world.trusted,
        observer=observer,
        relays=relays,
        vocabulary=world.engine.vocabulary,
        monotonic=monotonic,
    )


class StallingRelays(MemoryRelays):
    """Begin to send blobs that they do not have, and never finish."""

    async def get(self, digest: str, *, limit: int, relays: Sequence[str] = ()) -> bytes:
        if digest not in self.blobs:
            await asyncio.Event().wait()
        return await super().get(digest, limit=limit, relays=relays)


async def test_run__blobs_that_a_relay_holds_back_hold_up_nobody_else_s_for_long(tmp_path: Path) -> None:
    """A worker's own relay may serve the validators and not the trainer."""
    opened = (OpenStep(step=1, limit=100, share=SHARE_ALL),)
    world, relays, now = make_world(head=make_head(open_steps=opened)), StallingRelays(), [0.0]
    observer = ValidatorNetwork(world.spec, tmp_path).eye
    pool = make_pool(world, observer, relays, monotonic=lambda: now[0])
    honest, submissions, before = make_rollouts(world), list[tuple[Submission, NodeKey]](), ZERO_DIGEST
    await relays.put(honest.blob)
    for index in range(9):
        held_back = make_submission(world, WORKERS[1], index=index, predecessor=before, blob=f"{index:064x}")
        submissions.append((held_back, WORKERS[1]))
        before = submission_digest(held_back)
    for submission, key in (*submissions, (honest.submission, WORKERS[0])):
        world.trusted.admit_submission(world.row(submission, key))
        for validator in VALIDATORS[:2]:
            world.trusted.admit_verdict(world.row(make_verdict(submission), validator))
    running = asyncio.create_task(pool.run())
    async with asyncio.timeout(20):
        while not pool.is_here(honest.digest):
            observer.wake()
            await asyncio.sleep(0.01)
    assert not list(pool.groups(1))  # they were accepted first
    now[0] = HELD_UP_SECONDS
    assert {group.submission for group in pool.groups(1)} == {honest.digest}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_run__what_is_accepted_waits_for_audits_and_a_fault_keeps_it_out(tmp_path: Path) -> None:
    world = make_world(make_spec(checks=CheckSpec(audit_rate=100, audit_window=60)))
    relays, now = MemoryRelays(), [0.0]
    observer = ValidatorNetwork(world.spec, tmp_path).eye
    pool = make_pool(world, observer, relays, monotonic=lambda: now[0])
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
