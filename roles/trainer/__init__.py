"""The trainer: collects accepted groups, makes GRPO steps, publishes and commits
checkpoints, and publishes the head."""

from roles.trainer.errors import BaseMismatch, CommitRefused, StateForked, StateMissing
from roles.trainer.lifecycle import TRANSITIONS, TrainerState
from roles.trainer.trainer import Trainer

__all__ = [
    "TRANSITIONS",
    "BaseMismatch",
    "CommitRefused",
    "StateForked",
    "StateMissing",
    "Trainer",
    "TrainerState",
]
