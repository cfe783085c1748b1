"""When a batch is full, and of what: pure rules over groups in order of acceptance (INTELLECT-2, section 3.3.2).

Groups are taken in order of acceptance, never by reward or length, so that a batch is not a selection of easy groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from roles.rl.batch import TrainingGroup, is_usable, mean_reward
from roles.spec import TrainingSpec

Outcome = Literal["full", "short", "saturated"]


@dataclass(frozen=True, slots=True)
class PooledGroup:
    """An accepted group: its place (submission digest, number within it) and its training data."""

    submission: str
    number: int
    training: TrainingGroup

    @property
    def place(self) -> tuple[str, int]:
        """Identity of the group, which may be in only one batch."""
        return self.submission, self.number


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """The groups that step `step` uses up. "short": `max_groups` arrived, and fewer than
    `batch_groups` of them are usable.

    `rounds` counts consecutive saturated batches, including this one. `reward` is the mean over all completions of all
    groups examined. A saturated batch uses up only groups that teach nothing, and leaves the weights unchanged.
    """

    step: int
    groups: tuple[PooledGroup, ...]
    outcome: Outcome
    rounds: int
    reward: float

    def is_last(self, training: TrainingSpec) -> bool:
        """Whether the run ends with this step."""
        return self.step >= training.steps or self.rounds >= training.saturated_rounds

    @property
    def usable(self) -> int:
        """How many groups are usable, that is, teach something."""
        return sum(is_usable(group.training) for group in self.groups)


def close_batch(
    groups: Iterable[PooledGroup], *, step: int, training: TrainingSpec, rounds_before: int
) -> ClosedBatch | None:
    """The batch of a step from groups in order of acceptance, or None while more groups are needed.

    It is full with `batch_groups` usable groups. Once `max_groups` have been examined, `min_batch` usable ones suffice;
    fewer make a saturated round.
    """
    walked: list[PooledGroup] = []
    usable = 0
    for group in groups:
        walked.append(group)
        usable += is_usable(group.training)
        if usable == training.batch_groups:
            return ClosedBatch(step, tuple(walked), "full", 0, mean_reward([group.training for group in walked]))
        if len(walked) == training.max_groups:
            return _close_at_most(walked, usable, step=step, training=training, rounds_before=rounds_before)
    return None


def _close_at_most(
    walked: list[PooledGroup], usable: int, *, step: int, training: TrainingSpec, rounds_before: int
) -> ClosedBatch:
    reward = mean_reward([group.training for group in walked])
    if usable >= training.min_batch:
        return ClosedBatch(step, tuple(walked), "short", 0, reward)
    spent = tuple(group for group in walked if not is_usable(group.training))
    return ClosedBatch(step, spent, "saturated", rounds_before + 1, reward)
