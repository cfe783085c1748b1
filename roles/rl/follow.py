"""One trainer, several ranks: the leading rank decides, the others repeat its calls.

Under torchrun only rank 0 is a node (keys, DHT, files); the others run `follow`. A call travels as JSON bytes over the
process group, so all ranks make the same collectives in the same order. The group is one operator's own machines.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from roles.rl.batch import TrainingGroup
from roles.rl.learner import Learner
from roles.rl.metrics import StepMetrics
from roles.rl.ranks import Ranks
from roles.rl.settings import GrpoSettings


class LeadingLearner:
    """The learner as rank 0 uses it: each call is told to the other ranks first. Alone, it is just the learner."""

    def __init__(self, base: Path, settings: GrpoSettings, state: Path | None = None) -> None:
        """Load as `Learner` does; the other ranks load the same while they enter `follow`."""
        self._learner = Learner(base, settings, state)

    @property
    def last_step(self) -> int:
        """The rollout step the weights come from; 0 is the base."""
        return self._learner.last_step

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        """Make a rollout step on all ranks; see `Learner.step`."""
        self._tell("step", groups=[asdict(group) for group in groups], step=step)
        return self._learner.step(groups, step)

    def save_weights(self, folder: Path) -> None:
        """Write a checkpoint; see `Learner.save_weights`."""
        self._tell("save_weights", folder=str(folder))
        self._learner.save_weights(folder)

    def save_state(self, folder: Path) -> None:
        """Write the state; see `Learner.save_state`."""
        self._tell("save_state", folder=str(folder))
        self._learner.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Continue from a state that every rank can read; see `Learner.load_state`."""
        self._tell("load_state", folder=str(folder))
        self._learner.load_state(folder)

    def load_weights(self, folder: Path, *, step: int, keep_moments: bool) -> None:
        """Take a checkpoint's weights on all ranks; see `Learner.load_weights`."""
        self._tell("load_weights", folder=str(folder), step=step, keep_moments=keep_moments)
        self._learner.load_weights(folder, step=step, keep_moments=keep_moments)

    def close(self) -> None:
        """Let the other ranks end. Call once, last."""
        self._tell("close")
        self._learner.ranks.leave()

    def _tell(self, call: str, **arguments: Any) -> None:
        if self._learner.ranks.mesh is not None:
            _send(self._learner.ranks, json.dumps({"call": call, **arguments}).encode())


def follow(base: Path, settings: GrpoSettings, state: Path | None = None) -> None:
    """Repeat rank 0's calls until it closes. The arguments are those its `LeadingLearner` was made with."""
    learner = Learner(base, settings, state)
    while _repeat(learner, json.loads(_receive(learner.ranks))):
        pass
    learner.ranks.leave()


def _repeat(learner: Learner, message: dict[str, Any]) -> bool:
    """Make one call; False ends the loop."""
    match message:
        case {"call": "step", "groups": groups, "step": step}:
            learner.step([_read_group(group) for group in groups], step)
        case {"call": "save_weights", "folder": folder}:
            learner.save_weights(Path(folder))
        case {"call": "save_state", "folder": folder}:
            learner.save_state(Path(folder))
        case {"call": "load_state", "folder": folder}:
            learner.load_state(Path(folder))
        case {"call": "load_weights", "folder": folder, "step": step, "keep_moments": keep_moments}:
            learner.load_weights(Path(folder), step=step, keep_moments=keep_moments)
        case _:
            return False
    return True


def _read_group(fields: dict[str, Any]) -> TrainingGroup:
    return TrainingGroup(
        prompt=tuple(fields["prompt"]),
        completions=tuple(tuple(completion) for completion in fields["completions"]),
        rewards=tuple(fields["rewards"]),
        policy_step=fields["policy_step"],
        submission=fields["submission"],
    )


def _send(ranks: Ranks, message: bytes) -> None:
    dist.broadcast(torch.tensor([len(message)], device=ranks.device), src=0)
    dist.broadcast(torch.frombuffer(bytearray(message), dtype=torch.uint8).to(ranks.device), src=0)


def _receive(ranks: Ranks) -> bytes:
    length = torch.zeros(1, dtype=torch.int64, device=ranks.device)
    dist.broadcast(length, src=0)
    message = torch.empty(int(length.item()), dtype=torch.uint8, device=ranks.device)
    dist.broadcast(message, src=0)
    return message.cpu().numpy().tobytes()
