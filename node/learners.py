"""Builds the trainer's learner from the run's and the node's settings: in this process, or over several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.config import NodeConfig
from node.engines import check_device, set_threads
from node.errors import ConfigError
from roles.spec import RunSpec

if TYPE_CHECKING:
    from roles.rl.settings import GrpoSettings
    from roles.trainer.stepping import Learner

CHECKPOINTS = "checkpoints"
"""Folder of published checkpoints, inside the trainer's own folder (`roles.trainer.journal`)."""


def learner_settings(spec: RunSpec, config: NodeConfig) -> GrpoSettings:
    """The learner's settings. Raises ConfigError where they contradict each other."""
    from roles.rl.settings import GrpoSettings

    training = spec.training
    try:
        return GrpoSettings(
            learning_rate=float(training.learning_rate),
            betas=(float(training.beta1), float(training.beta2)),
            weight_decay=float(training.weight_decay),
            eps=float(training.eps),
            delta=float(training.delta),
            kl_coef=float(training.kl_coef),
            entropy_coef=float(training.entropy_coef),
            loss=training.loss,
            loss_low=None if training.loss_low is None else float(training.loss_low),
            loss_high=None if training.loss_high is None else float(training.loss_high),
            old_logprobs=training.old_logprobs,
            max_grad_norm=float(training.max_grad_norm),
            optimizer_steps=training.optimizer_steps,
            warmup_steps=training.warmup_steps,
            micro_batch=training.micro_batch,
            micro_tokens=config.pass_tokens,
            checkpoint_activations=config.checkpoint_activations,
            temperature=float(spec.sampling.temperature),
        )
    except ValueError as error:
        raise ConfigError(f"the run's training numbers contradict each other: {error}") from error


def build_learner(config: NodeConfig, spec: RunSpec, *, base: Path, state: Path) -> Learner:
    """The learner for the base model; `state` is the trainer's folder. Blocking. Raises ConfigError, RankFailed."""
    import torch

    from roles.rl.learner import Learner
    from roles.rl.ranked import RankedLearner, RankFailed

    set_threads(config)
    check_device(config.device)
    settings = learner_settings(spec, config)
    ranks = config.ranks or (torch.cuda.device_count() if config.device == "cuda" else 1)
    checkpoints = state / CHECKPOINTS
    try:
        if ranks <= 1:
            return Learner(base, settings, checkpoints=checkpoints, device=config.device)
        log = config.home / "ranks.log"
        return RankedLearner(
            base, settings, ranks=ranks, log=log, device=config.device, threads=config.threads, checkpoints=checkpoints
        )
    except RankFailed as error:
        raise ConfigError(f"the learner's ranks do not start: {error.said}") from error
    except Exception as error:  # transformers, safetensors and torch may raise anything for a bad model
        said = str(error)[:200] or type(error).__name__
        raise ConfigError(f"the model in {base} cannot be loaded: {said}") from error
