"""Length rewards: the prompt states a target length, and the reward depends on how far off a completion is
(INTELLECT-2, section 3.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roles.spec import LengthSpec
from roles.tasks.task import Task

CLIP_MIDDLE = 0.5
"""Factor for a right answer of exactly the target length, in mode `max`."""


def exact(score: float, *, target: int, length: int, alpha: float) -> float:
    """`score - alpha |target - length|`: what INTELLECT-2 trained with."""
    return score - alpha * abs(target - length)


def at_most(score: float, *, target: int, length: int, alpha: float) -> float:
    """`score clip(alpha (target - length) + 0.5, 0, 1)`: longer than the target earns less,
    shorter earns more (L1-Max)."""
    return score * min(1.0, max(0.0, alpha * (target - length) + CLIP_MIDDLE))


def cut_off(score: float, *, target: int, length: int, alpha: float) -> float:
    """`score`, but 0 past the target."""
    return score if length <= target else 0.0


MODES: Mapping[str, Callable[..., float]] = {"exact": exact, "max": at_most, "clip": cut_off}


@dataclass(frozen=True, slots=True)
class LengthTask:
    """A task with a run's length rule, or without one."""

    task: Task
    length: LengthSpec | None = None

    @property
    def targets(self) -> Sequence[int]:
        """Lengths to draw from; empty if the run sets none."""
        return self.length.targets if self.length else ()

    def prompt(self, problem: int, target: int | None) -> str:
        """The prompt shown to the policy. Raises IndexError for a problem that does not exist."""
        text = self.task.prompt(problem)
        return (
            text
            if self.length is None or target is None
            else text + self.length.suffix.replace("{target}", str(target))
        )

    def reward(self, problem: int, target: int | None, text: str, *, length: int) -> float:
        """The reward of a completion of `length` tokens. Raises what the task's scorer raises."""
        score = self.task.score(problem, text)
        if self.length is None or target is None:
            return score
        return MODES[self.length.mode](score, target=target, length=length, alpha=float(self.length.alpha))
