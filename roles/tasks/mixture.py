"""Several tasks as one: problem `i` of the mixture belongs to one task, in proportion to the weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from roles.tasks.problems import digest_of
from roles.tasks.registry import load_task
from roles.tasks.task import Task, TaskError

if TYPE_CHECKING:  # the confined scorer starts sooner without the spec
    from roles.spec import TaskSpec


class Mixture:
    """Problem `i` is problem `(i div W) mod size` of the task that has slot `i mod W`, where each task has as many of
    the `W` slots as its weight. So a uniform draw gives each task its share, and each of its problems the same
    probability to within one round of the largest task."""

    def __init__(self, tasks: Sequence[Task], weights: Sequence[int]) -> None:
        self._tasks = tuple(tasks)
        self._ends = tuple(accumulate(weights))
        self.name = "+".join(task.name for task in tasks)
        self.size = self._ends[-1] * max(task.size for task in tasks)
        self.digest = digest_of(
            "mixture/1", *(f"{task.digest}:{weight}" for task, weight in zip(tasks, weights, strict=True))
        )
        self.is_repeatable = all(task.is_repeatable for task in tasks)

    def place(self, index: int) -> tuple[Task, int]:
        """The task of a problem, and its number within that task. Raises IndexError outside `range(size)`."""
        if not 0 <= index < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        task = self._tasks[bisect_right(self._ends, index % self._ends[-1])]
        return task, index // self._ends[-1] % task.size

    def prompt(self, index: int) -> str:
        """The problem's text. Raises IndexError outside `range(size)`."""
        task, inner = self.place(index)
        return task.prompt(inner)

    def score(self, index: int, completion: str) -> float:
        """The score of the problem's own task. Raises what that raises."""
        task, inner = self.place(index)
        return task.score(inner, completion)


def load_tasks(listed: Sequence[TaskSpec], folder: Path | None = None) -> Task:
    """A run's tasks combined into one, each checked against the digest in the spec. Raises
    TaskError naming one that differs."""
    tasks = [_load(each, folder) for each in listed]
    return tasks[0] if len(tasks) == 1 else Mixture(tasks, [each.weight for each in listed])


def _load(listed: TaskSpec, folder: Path | None) -> Task:
    task = load_task(listed.name, listed.parameters, folder)
    if (task.digest, task.size) != (listed.digest, listed.size):
        raise TaskError(
            f"the task {listed.name} of this installation is not the run's: other problems, or a scorer of another version;"
            " install the versions that the run's operator names"
        )
    return task
