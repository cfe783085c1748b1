"""The log-probabilities that workers report are compared, but never learned from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roles.rl.batch import Row, TrainingGroup, build_batch
from roles.rl.calls import perform, step_call
from roles.rl.learner import Learner
from roles.rl.plan import Pass
from roles.rl.reported import compare_reported
from roles.rl.scoring import Scorer
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY

SETTINGS = GrpoSettings(optimizer_steps=1, kl_coef=0.0, temperature=0.7)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def compared(row: Row, *, scores: Sequence[float] = (-1.5, -2.0, -3.0), steps: Sequence[int] = (0,)) -> list[float]:
    one = Pass((row,), build_batch([row]))
    return compare_reported(one, torch.tensor(scores), steps=steps).tolist()


def make_row(**changes: Any) -> Row:
    return Row((5,), (7, 8, 1), 1.0, reported=(-1.0, -2.0, -9.0))._replace(**changes)


def test_compare_reported__each_token_and_none_by_more_than_a_nat() -> None:
    assert compared(make_row()) == [0.5, 0.0, 1.0]


def test_compare_reported__what_a_tool_said_was_not_sampled() -> None:
    assert compared(make_row(turns=(1, 1, 1)), scores=(-1.5, -9.0)) == [0.5, 0.0]


@pytest.mark.parametrize("changes", [{"reported": ()}, {"policy_step": 1}])
def test_compare_reported__nothing_of_rows_that_cannot_be(changes: dict[str, Any]) -> None:
    assert compared(make_row(**changes)) == []


def test_compare_reported__nothing_of_a_pass_that_only_fills_up_a_rank() -> None:
    batch = build_batch([make_row()])
    spare = Pass((make_row(),), replace(batch, mask=torch.zeros_like(batch.mask)))
    assert not len(compare_reported(spare, torch.zeros(3), steps=(0,)))


def test_training_group__refuse_log_probabilities_of_other_tokens() -> None:
    with pytest.raises(ValueError, match="of other completions"):
        replace(make_group(), reported=((-1.0,),) * 4)


def reporting(*, off: float) -> TrainingGroup:
    """A group with the base's own log-probabilities, each `off` nats lower."""
    group, scorer = make_group(), Scorer(Learner(POLICY, SETTINGS)._model)
    rows = [build_batch([Row(group.prompt, tokens, 0.0)]) for tokens in group.completions]
    scores = [scorer(row, temperature=0.7, entropy_gradient=False).logprobs.tolist() for row in rows]
    return replace(group, reported=tuple(tuple(value - off for value in row) for row in scores))


@pytest.mark.parametrize("old_logprobs", ["behaviour", "current"])
@pytest.mark.parametrize("off", [0.0, 0.1])
def test_step__says_how_far_workers_are_from_what_is_computed_here(old_logprobs: Any, off: float) -> None:
    learner = Learner(POLICY, replace(SETTINGS, old_logprobs=old_logprobs))
    assert learner.step([reporting(off=off)], 1).reported_mismatch == pytest.approx(off, abs=1e-4)


def test_step__weights_that_have_moved_on_are_not_what_a_worker_had() -> None:
    learner, group = Learner(POLICY, SETTINGS), reporting(off=0.1)
    learner.step([group], 1)
    assert learner.step([group], 2).reported_mismatch == 0.0


def test_step__is_the_same_whatever_workers_report(tmp_path: Path) -> None:
    for name, group in (("a", make_group()), ("b", reporting(off=0.5))):
        learner = Learner(POLICY, SETTINGS)
        learner.step([group], 1)
        learner.save_weights(tmp_path / name)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


class Listener:
    """A learner that notes what it is given."""

    groups: Sequence[TrainingGroup] = ()

    def step(self, groups: Sequence[TrainingGroup], step: int) -> None:
        self.groups = groups


def test_step_call__reaches_every_rank() -> None:
    learner: Any = Listener()
    group = replace(make_group(completions=((7, 1), (1,)), rewards=(1.0, 0.0)), reported=((-0.123456, -2.0), (-3.0,)))
    perform(learner, json.loads(json.dumps(step_call([group], 1))))
    assert learner.groups == [replace(group, reported=((-0.1235, -2.0), (-3.0,)))]
