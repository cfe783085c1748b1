"""A policy with a calculator trains: the tool's output is context, never a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roles.inference.transformers_engine import TransformersEngine
from roles.rl.batch import TrainingGroup, count_all_tokens, count_tokens, select_rows
from roles.rl.learner import Learner
from roles.rl.settings import GrpoSettings
from roles.spec import ToolSpec
from roles.trainer.closing import ClosedBatch, PooledGroup
from roles.trainer.journal import Journal
from roles.trainer.pool import split_groups
from roles.trusted import AdmittedSubmission
from roles.turns import load_tool
from roles.verification import Verifier
from roles.worker.generation import HeldPolicy, Made
from tests.builders import POLICY, WORKERS, World, make_rollouts, make_spec, make_world, manifest_of, open_rollouts

GROUP = TrainingGroup(
    prompt=(5, 12, 6, 20),
    completions=((5, 12, 6, 14, 9, 19, 1), (5, 1)),
    rewards=(1.0, 0.0),
    policy_step=0,
    submission="ab" * 32,
    turns=((4, 1, 2), (2,)),
)


def calculating() -> World:
    """A run in which half of the first token's choices already call the calculator."""
    return make_world(make_spec(tool=ToolSpec(name="calculator", digest=load_tool("calculator", {}).digest)))


def groups_of(world: World, made: Made) -> list[TrainingGroup]:
    row = world.row(made.submission, WORKERS[0])
    item = AdmittedSubmission(made.submission, row.digest, "00" * 32, (), row)
    return [group.training for group in split_groups(open_rollouts(world, made), item, world.spec)]


def test_count_tokens__the_tools_are_not_learned() -> None:
    assert count_tokens(select_rows([GROUP])) == count_all_tokens([GROUP]) == GROUP.learned == 8


def test_training_group__turns_must_add_up() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        replace(GROUP, turns=((4, 1, 3), (2,)))
    with pytest.raises(ValueError, match="do not add up"):
        replace(GROUP, turns=((4, 1, 2),))


def test_step__what_the_tool_said_is_no_target(tmp_path: Path) -> None:
    """Whatever the tool says, if nothing of the policy's follows it, the weights become the same."""
    torch.set_num_threads(1)
    written = []
    for answer in (9, 3):
        learner = Learner(POLICY, GrpoSettings())
        completions = ((5, 12, 6, 14, answer), (5, 1))
        learner.step([replace(GROUP, completions=completions, turns=((4, 1), (2,)))], step=1)
        learner.save_weights(tmp_path / str(answer))
        written.append((tmp_path / str(answer) / "model.safetensors").read_bytes())
    assert written[0] == written[1] != (POLICY / "model.safetensors").read_bytes()


def test_journal__keeps_turns(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    batch = ClosedBatch(1, (PooledGroup(GROUP.submission, 0, GROUP),), "full", 0, 0.5)
    journal.save_batch(batch)
    assert journal.batch(1) == batch


def test_run__a_step_is_trained_and_its_policy_is_accepted(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    world = calculating()
    submissions = [make_rollouts(world, index=index) for index in range(2)]
    groups = [group for made in submissions for group in groups_of(world, made)]
    assert any(len(turns) > 1 for group in groups for turns in group.turns)
    learner = Learner(POLICY, GrpoSettings())
    metrics = learner.step(groups, step=1)
    assert metrics.groups_used > 0
    assert metrics.grad_norm > 0
    assert metrics.tokens == sum(group.learned for group in groups if any(r != group.rewards[0] for r in group.rewards))

    learner.save_weights(tmp_path / "1")
    engine = TransformersEngine()
    engine.load(tmp_path / "1")
    trained = replace(world, engine=engine)
    made = make_rollouts(trained, index=2, policy=HeldPolicy(1, manifest_of(1), tmp_path / "1"))
    verifier = Verifier(spec=world.spec, engine=engine, task=world.task)
    found = verifier.judge(made.submission, seed=world.seed(WORKERS[0], 1, 2), data=made.blob)
    assert found.outcome == "accept", found
