"""Rollouts are scored under the policy that made them: by the checkpoint that the trainer still
has, not by a worker's claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roles.rl.batch import TrainingGroup, select_rows
from roles.rl.learner import Learner
from roles.rl.plan import Pass
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY

SETTINGS = GrpoSettings(optimizer_steps=1, kl_coef=0.0, learning_rate=1e-3, old_logprobs="behaviour")
OLD, NEW = make_group(policy_step=0), make_group(prompt=(5, 12, 7, 20), policy_step=1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_learner(folder: Path, **changes: object) -> Learner:
    """Two updates on, with checkpoint 1 on the disk as the trainer keeps it."""
    learner = Learner(POLICY, replace(SETTINGS, **changes), checkpoints=folder)  # type: ignore[arg-type]
    learner.step([OLD], 1)
    learner.save_weights(folder / "1")
    learner.step([OLD], 2)
    return learner


def scored(learner: Learner, groups: list[TrainingGroup]) -> Pass:
    rows = select_rows(groups)
    ((one,),) = learner._score_plans([learner._plan(rows)], rows)
    return one


def test_behaviour__each_row_under_its_own_checkpoint(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    mixed = scored(learner, [OLD, NEW])
    assert mixed.old is not None
    for group, folder in ((OLD, POLICY), (NEW, tmp_path / "1")):
        own = scored(Learner(folder, replace(SETTINGS, old_logprobs="current")), [group])
        assert own.old is not None
        here = torch.tensor([row.policy_step == group.policy_step for row in mixed.rows])[mixed.batch.sequence]
        ours, theirs = sorted(mixed.old[here].tolist()), sorted(own.old.tolist())
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_behaviour__ratios_compare_with_the_rollout_s_policy(tmp_path: Path) -> None:
    behaviour, current = make_learner(tmp_path), make_learner(tmp_path, old_logprobs="current")
    assert current.step([OLD], 3).ratio_max == pytest.approx(1.0)  # one update: nothing has moved yet
    metrics = behaviour.step([OLD], 3)
    assert metrics.ratio_max > 1.1
    assert (metrics.staleness, metrics.unscored) == (2.0, 0)


def test_behaviour__a_checkpoint_that_is_gone_is_stood_in_for_and_counted(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    metrics = learner.step([make_group(policy_step=7)], 3)
    assert metrics.unscored == 4
    assert metrics.ratio_max == pytest.approx(1.0)


def test_behaviour__a_checkpoint_that_is_damaged_is_stood_in_for(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    (tmp_path / "1" / "model.safetensors").write_bytes(b"half")
    assert learner.step([make_group(policy_step=1)], 3).ratio_max == pytest.approx(1.0)


@pytest.mark.parametrize("how", ["load_weights", "load_state"])
def test_behaviour__after_a_take_over_the_checkpoint_of_that_name_is_another(how: str, tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    learner.step([make_group(policy_step=1)], 3)  # checkpoint 1 is held from here on
    learner.save_weights(tmp_path / "1")  # as `Journal.adopt` does: another trainer's lies there now
    if how == "load_weights":
        learner.load_weights(tmp_path / "1", step=1, keep_moments=False)
    else:
        learner.save_state(tmp_path / "state")
        learner.load_state(tmp_path / "state")
    assert learner.step([make_group(policy_step=1)], 2).ratio_max == pytest.approx(1.0)


def test_tis__corrects_the_current_policy_against_the_rollout_s(tmp_path: Path) -> None:
    metrics = make_learner(tmp_path, old_logprobs="current", loss="tis").step([OLD], 3)
    assert metrics.drift > 1e-3
    assert metrics.ratio_max == pytest.approx(1.0)
    fresh = Learner(POLICY, replace(SETTINGS, old_logprobs="current", loss="tis")).step([OLD], 1)
    assert fresh.drift == pytest.approx(0.0, abs=1e-10)


def test_settings__a_loss_that_corrects_itself_needs_the_current_policy() -> None:
    with pytest.raises(ValueError, match="old_logprobs must be current"):
        replace(SETTINGS, loss="icepop")


@pytest.mark.parametrize("loss", ["cispo", "gspo", "icepop", "dppo"])
def test_step__every_loss_trains(loss: str, tmp_path: Path) -> None:
    metrics = make_learner(tmp_path, loss=loss, old_logprobs="current").step([OLD, NEW], 3)
    assert metrics.grad_norm > 0
