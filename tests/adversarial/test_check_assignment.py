"""Workers that choose for themselves: another identity, an easier problem, another prompt, a
luckier seed. The rest is honest."""

from __future__ import annotations

from dataclasses import replace

from roles.rules import Reason
from tests.adversarial.attack import assert_only, forged, resampled
from tests.builders import WORKERS, make_rollouts, make_world, open_rollouts, spoil


def test_file_made_for_another_index() -> None:
    world = make_world()
    assert_only("identity", Reason.WRONG_IDENTITY, world, spoil(world, make_rollouts(world), lambda row: row, index=1))


def test_file_of_another_node__top_14() -> None:
    world = make_world()
    copied = spoil(world, make_rollouts(world), lambda row: row, node=WORKERS[1].node)
    assert_only("identity", Reason.WRONG_IDENTITY, world, copied)


def test_easier_problem_answered__top_21() -> None:
    world = make_world()
    made = make_rollouts(world)
    rows = open_rollouts(world, made).rows
    easy = min(set(range(world.task.size)) - {row.problem_id for row in rows}, key=lambda i: len(world.task.prompt(i)))
    prompt = world.engine.encode(world.task.prompt(easy))
    chosen = resampled(world, [replace(row, problem_id=easy, prompt=prompt) for row in rows])
    assert_only("problems", Reason.WRONG_PROBLEM, world, forged(world, made, chosen))


def test_other_prompt_under_the_assigned_problem__top_26() -> None:
    world = make_world()
    made = make_rollouts(world)
    prompt = world.engine.encode("1+1>")
    chosen = resampled(world, [replace(row, prompt=prompt) for row in open_rollouts(world, made).rows])
    assert_only("prompts", Reason.WRONG_PROMPT, world, forged(world, made, chosen))


def test_seeds_of_the_workers_own() -> None:
    world = make_world()
    made = make_rollouts(world)
    chosen = resampled(world, [replace(row, seed=row.seed ^ 1) for row in open_rollouts(world, made).rows])
    assert_only("seeds", Reason.WRONG_SEED, world, forged(world, made, chosen))
