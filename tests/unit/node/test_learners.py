"""Building a learner from a run's and a node's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from node.config import NodeConfig
from node.engines import build_engine
from node.errors import ConfigError
from node.learners import build_learner, learner_settings
from roles.rl.learner import Learner
from roles.spec import TrainingSpec
from tests.builders import make_spec
from tests.unit.roles.rl.local_run import POLICY


def make_config(**changes: object) -> NodeConfig:
    return NodeConfig.model_validate({"role": "trainer", "threads": 1, **changes})


def test_learner_settings__what_the_run_says_and_what_the_machine_allows() -> None:
    training = TrainingSpec(loss="dppo", loss_high="0.3", old_logprobs="behaviour", warmup_steps=25)
    settings = learner_settings(
        make_spec(training=training), make_config(pass_tokens=4096, checkpoint_activations=True)
    )
    assert (settings.loss, settings.loss_low, settings.loss_high) == ("dppo", None, 0.3)
    assert settings.old_logprobs == "behaviour"
    assert (settings.warmup_steps, settings.micro_tokens, settings.checkpoint_activations) == (25, 4096, True)


def test_learner_settings__bounds_that_contradict_are_said() -> None:
    training = TrainingSpec(loss="cispo", loss_low="9")
    with pytest.raises(ConfigError, match=r"contradict each other: the lower bound .* 9\.0, 5\.0"):
        learner_settings(make_spec(training=training), make_config())


def test_training_spec__a_correction_against_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="old_logprobs must be current"):
        TrainingSpec(loss="tis", old_logprobs="behaviour")


def test_build_learner__one_process_on_a_cpu(tmp_path: Path) -> None:
    learner = build_learner(make_config(), make_spec(), base=POLICY, state=tmp_path)
    assert isinstance(learner, Learner)
    assert learner.checkpoints == tmp_path / "checkpoints"


def test_build_learner__a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        build_learner(make_config(), make_spec(), base=tmp_path, state=tmp_path)


# -- the device that the settings name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_build__without_the_gpu_that_is_named_says_so_and_takes_no_other__top_23(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=f"--device {device}: .*; .*cpu"):
        build_engine(device, dtype="float32")
    with pytest.raises(ConfigError, match=f"--device {device}: .*; .*cpu"):
        build_learner(make_config(device=device), make_spec(), base=POLICY, state=tmp_path)
