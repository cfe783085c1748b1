"""A worker's output is determined by its ticket alone, and is as the spec says."""

from __future__ import annotations

import pytest

from dht.encoding import ZERO_DIGEST, sha256
from roles.assignment import assigned_groups
from roles.inference.errors import BadCheckpoint
from roles.toploc.proof import proof_bytes
from roles.worker.generation import Generator, HeldPolicy, Ticket
from tests.builders import POLICY, WORKERS, World, make_rollouts, make_world, manifest_of, open_rollouts


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


def test_make__assigned_prompts_and_seeds(world: World) -> None:
    made = make_rollouts(world)
    file = open_rollouts(world, made)
    sampling = world.spec.sampling
    groups = assigned_groups(
        world.seed(WORKERS[0]),
        problems=world.task.size,
        groups=sampling.groups_per_submission,
        group_size=sampling.group_size,
    )
    assert [row.seed for row in file.rows] == [seed for group in groups for seed in group.seeds]
    assert [row.problem_id for row in file.rows] == [group.problem for group in groups for _ in group.seeds]
    assert all(row.prompt == world.engine.encode(world.task.prompt(row.problem_id)) for row in file.rows)


def test_make__rewards_are_the_scorers_and_proofs_have_their_length(world: World) -> None:
    for row in open_rollouts(world, make_rollouts(world)).rows:
        assert row.reward == world.task.score(row.problem_id, world.engine.decode(row.output))
        assert len(row.proof) == proof_bytes(len(row.output))


def test_make__submission_names_its_blob(world: World) -> None:
    made = make_rollouts(world, predecessor=ZERO_DIGEST)
    file = open_rollouts(world, made)
    assert made.submission.blob == sha256(made.blob)
    assert made.submission.size == len(made.blob)
    assert made.submission.tokens == sum(len(row.output) for row in file.rows)
    assert made.digest == world.row(made.submission, WORKERS[0]).digest


def test_make__the_same_ticket_gives_the_same_bytes(world: World) -> None:
    assert make_rollouts(world).digest == make_rollouts(world).digest


def test_make__another_index_gives_other_rollouts(world: World) -> None:
    assert make_rollouts(world, index=0).submission.blob != make_rollouts(world, index=1).submission.blob


def test_make__needs_weights(world: World) -> None:
    generator = Generator(world.spec, node=WORKERS[0].node, engine=world.engine, task=world.task)
    with pytest.raises(ValueError, match="load a checkpoint first"):
        generator.make(Ticket(1, 0, "00" * 32, ZERO_DIGEST))


def test_load__bad_checkpoint_leaves_the_old_weights(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    generator = Generator(world.spec, node=WORKERS[0].node, engine=world.engine, task=world.task)
    generator.loaded = HeldPolicy(0, manifest_of(0), POLICY)
    with pytest.raises(BadCheckpoint):
        generator.load(HeldPolicy(1, manifest_of(1), tmp_path_factory.mktemp("empty")))
    assert generator.loaded.step == 0
