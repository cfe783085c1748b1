"""A learner's calls as JSON: sent by the node to the leading rank, and by that to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roles.rl.batch import TrainingGroup
from roles.rl.checkpoint import CheckpointError
from roles.rl.learner import Learner, TrainingDiverged, UnfitGroups
from roles.rl.metrics import StepMetrics

REFUSALS: Mapping[str, type[Exception]] = {
    "diverged": TrainingDiverged,
    "unfit": UnfitGroups,
    "checkpoint": CheckpointError,
    "disk": OSError,
    "value": ValueError,
}
"""Errors that every rank raises alike and survives. Any other error ends its process, and with it all ranks."""


def step_call(groups: Sequence[TrainingGroup], step: int) -> dict[str, Any]:
    """The call for a rollout step."""
    plain = [asdict(group) for group in groups]
    for group in plain:
        group["reported"] = [[round(value, 4) for value in row] for row in group["reported"]]  # halves the message
    return {"call": "step", "groups": plain, "step": step}


def perform(learner: Learner, message: Mapping[str, Any]) -> StepMetrics | None:
    """Execute a call. Raises what the learner raises, and ValueError for an unknown call."""
    match message:
        case {"call": "step", "groups": groups, "step": step}:
            return learner.step([_read_group(group) for group in groups], step)
        case {"call": "save_weights", "folder": folder}:
            learner.save_weights(Path(folder))
        case {"call": "save_state", "folder": folder}:
            learner.save_state(Path(folder))
        case {"call": "load_state", "folder": folder}:
            learner.load_state(Path(folder))
        case {"call": "load_weights", "folder": folder, "step": step, "keep_moments": keep_moments}:
            learner.load_weights(Path(folder), step=step, keep_moments=keep_moments)
        case {"call": "pass_over", "step": step}:
            learner.last_step = step
        case _:
            raise ValueError(f"no such call: {message.get('call')}")
    return None


def refusal_of(error: Exception) -> str | None:
    """The name of an error that all ranks raise alike; None for one of this rank alone."""
    return next((name for name, kind in REFUSALS.items() if isinstance(error, kind)), None)


def _read_group(fields: Mapping[str, Any]) -> TrainingGroup:
    return TrainingGroup(
        prompt=tuple(fields["prompt"]),
        completions=tuple(tuple(completion) for completion in fields["completions"]),
        rewards=tuple(fields["rewards"]),
        policy_step=fields["policy_step"],
        submission=fields["submission"],
        turns=tuple(tuple(turns) for turns in fields["turns"]),
        reported=tuple(tuple(row) for row in fields["reported"]),
    )
