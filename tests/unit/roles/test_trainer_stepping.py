"""A failing update: what is kept, what is reported, and what ends the trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import torch

from roles.rl.batch import TrainingGroup
from roles.rl.checkpoint import STATE_FILE
from roles.rl.learner import Learner, OutOfMemory
from roles.rl.metrics import StepMetrics
from roles.rl.settings import GrpoSettings
from roles.spec import RunSpec
from roles.trainer.closing import ClosedBatch, PooledGroup
from roles.trainer.errors import MemoryShort, StateMissing
from roles.trainer.journal import Journal
from roles.trainer.stepping import Stepper, idle_share
from tests.builders import make_spec, node_key
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY


class TiredLearner:
    """A learner without enough memory for an update."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        raise OutOfMemory("tried to allocate 20 GiB")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def make_stepper(folder: Path, *, is_tired: bool = False) -> tuple[Stepper, Learner, Journal]:
    torch.set_num_threads(1)
    spec: RunSpec = make_spec()
    learner, journal = Learner(POLICY, GrpoSettings(kl_coef=0.0)), Journal(folder)
    used: Any = TiredLearner(learner) if is_tired else learner
    clock = lambda: int(time.time() * 1000)  # noqa: E731
    stepper = Stepper(spec, term=1, learner=used, key=node_key(1), journal=journal, clock=clock)
    stepper.prepare_base(POLICY)
    return stepper, learner, journal


def batch_of(group: TrainingGroup, step: int = 1) -> ClosedBatch:
    pooled = PooledGroup(group.submission, 0, group)
    return ClosedBatch(step=step, groups=(pooled,), outcome="full", rounds=0, reward=0.5)


def test_make__groups_of_another_tokenizer_leave_the_weights(tmp_path: Path) -> None:
    stepper, learner, journal = make_stepper(tmp_path)
    with structlog.testing.capture_logs() as said:
        stepper.make(batch_of(make_group(prompt=(5, 99))))
    (unfit,) = [event for event in said if event["event"] == "step.unfit"]
    assert "another tokenizer" in unfit["why"]
    assert (stepper.made, learner.last_step, learner.updates) == (1, 1, 0)
    files = [journal.checkpoint(step) / "model.safetensors" for step in (0, 1)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_make__weights_that_are_no_numbers_are_those_of_the_step_before(tmp_path: Path) -> None:
    stepper, learner, journal = make_stepper(tmp_path)
    with torch.no_grad():
        next(iter(learner._model.parameters()))[5] = torch.nan
    with structlog.testing.capture_logs() as said:
        stepper.make(batch_of(make_group()))
    assert [event["event"] for event in said if event["log_level"] == "error"] == ["step.diverged"]
    files = [journal.checkpoint(step) / "model.safetensors" for step in (0, 1)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_make__too_little_memory_ends_with_what_to_set_and_the_last_checkpoint_stays__trn_13(tmp_path: Path) -> None:
    stepper, _, journal = make_stepper(tmp_path, is_tired=True)
    before = (journal.learner / STATE_FILE).read_bytes()
    with pytest.raises(MemoryShort, match=r"step 1 does not fit .* checkpoint 0 stays.* --pass-tokens"):
        stepper.make(batch_of(make_group()))
    assert stepper.made == 0
    assert not journal.checkpoint(1).exists()
    assert (journal.learner / STATE_FILE).read_bytes() == before


def test_make__alarms_and_missing_policies_are_said(tmp_path: Path) -> None:
    stepper, learner, _ = make_stepper(tmp_path)
    learner.settings = replace(learner.settings, old_logprobs="behaviour")
    with structlog.testing.capture_logs() as said:
        stepper.make(batch_of(make_group(policy_step=9)))
    (missing,) = [event for event in said if event["event"] == "behaviour.missing"]
    assert missing["completions"] == 4
    (trained,) = [event for event in said if event["event"] == "step.trained"]
    assert 0.0 <= trained["idle_share"] <= 1.0


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def restart(learner: Learner, journal: Journal) -> Stepper:
    return Stepper(make_spec(), term=1, learner=learner, key=node_key(1), journal=journal, clock=lambda: 0)


def test_restore__a_checkpoint_that_the_disk_damaged_is_written_again(tmp_path: Path) -> None:
    stepper, learner, journal = make_stepper(tmp_path)
    stepper.make(batch_of(make_group()))
    weights = journal.checkpoint(1) / "model.safetensors"
    before = weights.read_bytes()
    flip_a_bit(weights)
    assert restart(learner, journal).restore() == 1
    assert weights.read_bytes() == before


def test_restore__a_damaged_base_model_is_named(tmp_path: Path) -> None:
    _, learner, journal = make_stepper(tmp_path)
    flip_a_bit(journal.checkpoint(0) / "model.safetensors")
    with pytest.raises(StateMissing, match=r"checkpoints/0 is damaged; restore"):
        restart(learner, journal).restore()


def test_idle_share__of_a_step() -> None:
    assert idle_share({"collect": 1.0, "gate": 1.0, "train": 1.5, "save": 0.5}) == pytest.approx(0.5)
    assert idle_share({}) == 0.0
