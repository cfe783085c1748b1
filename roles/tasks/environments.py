"""Environments of the `verifiers` library (0.4 or newer) whose tasks are one question and one answer.

The package of a task set is installed like any plug-in; its tasks are loaded, and its rewards computed, in a confined
process. What is not available there is refused when the run is created: tools, containers, judges that are models, data
fetched from the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from roles.sandbox.function import MAX_PAGE, CallBroken, CallFailed, ConfinedFunction
from roles.tasks.answers import answer_part, ask_scorer
from roles.tasks.problems import MAX_PROBLEMS, MAX_TEXT, Problem, ProblemList, digest_of, problem_at, texts_of
from roles.tasks.task import TaskError

NAME = "verifiers"
SCORER_VERSION = "verifiers/2"
PAGE = 256
"""Number of problems loaded per call."""


@dataclass(frozen=True, slots=True)
class Environment(ProblemList):
    """Problems of a task set; see `Task` for the contract of each member."""

    place: tuple[str, str, int]
    scorer: ConfinedFunction
    name: str = NAME
    is_repeatable: bool = False  # rewards are arbitrary code

    def score(self, index: int, completion: str) -> float:
        """The sum of the task's weighted rewards, from 0.0 to 1.0. Raises Undecided when they run out of time."""
        problem_at(self.problems, index)
        return ask_scorer(self.scorer, "score", *self.place, index, answer_part(completion))


def load_environment(parameters: Mapping[str, int | str], folder: Path | None) -> Environment:
    """Build the task. Parameters: `taskset` (the module that exports it), `config` (JSON of its settings), `size` (how
    many of its tasks, from the first). Raises TaskError."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError as error:
        raise TaskError(
            f"task {NAME} needs the package verifiers: pip install 'intellect-node[environments]'"
        ) from error
    place = _place(parameters)
    scorer = ConfinedFunction(
        "roles.tasks.environment_scorer:act", seconds=30.0, memory=4 * 2**30, warm=[("warm", *place)]
    )
    try:
        source = str(scorer("source", *place, seconds=120.0))
        problems = _load(scorer, place)
    except (CallFailed, CallBroken) as error:
        raise TaskError(f"the task set {place[0]!r} cannot be used: {error}") from error
    digest = digest_of(SCORER_VERSION, version, source, *map(str, place), *texts_of(problems))
    return Environment(problems, digest, place, scorer)


def _place(parameters: Mapping[str, int | str]) -> tuple[str, str, int]:
    taskset, config, size = parameters.get("taskset", ""), parameters.get("config", "{}"), parameters.get("size", 1000)
    if not isinstance(taskset, str) or not all(part.isidentifier() for part in taskset.replace("-", "_").split(".")):
        raise TaskError("parameter `taskset` names the module of a task set, such as my_environment")
    if not isinstance(size, int) or not 1 <= size <= MAX_PROBLEMS:
        raise TaskError(f"size must be from 1 to {MAX_PROBLEMS}")
    try:
        plain = json.loads(str(config))
    except ValueError as error:
        raise TaskError("config must be JSON, the settings of the task set") from error
    if not isinstance(plain, dict):
        raise TaskError("config must be a JSON object, the settings of the task set")
    return taskset.replace("-", "_"), json.dumps(plain, sort_keys=True), size


def _load(scorer: ConfinedFunction, place: tuple[str, str, int]) -> tuple[Problem, ...]:
    found: list[str] = []
    while len(found) < place[2]:
        stop = min(len(found) + PAGE, place[2])
        page = scorer("page", *place, len(found), stop, seconds=120.0, most=MAX_PAGE)
        found += page
        if len(page) < PAGE:
            break
    if len(found) < place[2]:
        raise TaskError(f"the task set {place[0]!r} has {len(found)} tasks, not {place[2]}: name fewer by `size`")
    if any(not prompt.strip() or len(prompt) > MAX_TEXT for prompt in found):
        raise TaskError(f"the task set {place[0]!r} has a prompt that is empty, or of more than {MAX_TEXT} characters")
    return tuple(Problem(prompt, "") for prompt in found)
