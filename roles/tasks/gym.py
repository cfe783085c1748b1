"""Any reasoning-gym data set, by name, seed and configuration. Problems are generated and
scored in confined processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from roles.sandbox.function import MAX_PAGE, CallBroken, CallFailed, ConfinedFunction
from roles.tasks.answers import answer_part, ask_scorer
from roles.tasks.problems import MAX_PROBLEMS, Problem, ProblemList, digest_of, problem_at, texts_of
from roles.tasks.task import TaskError

NAME = "reasoning-gym"
SCORER_VERSION = "reasoning-gym/2"
MAX_AROUND = 4096
PAGE = 256
"""Number of problems generated per call."""


@dataclass(frozen=True, slots=True)
class Gym(ProblemList):
    """Generated problems; see `Task` for the contract of each member."""

    place: tuple[str, int, int, str]
    scorer: ConfinedFunction
    full_marks: bool = False
    name: str = NAME
    is_repeatable: bool = True

    def score(self, index: int, completion: str) -> float:
        """The score of the data set's own scorer, from 0.0 to 1.0; with `full_marks`, 1.0 or nothing. Raises Undecided
        when it runs out of time."""
        problem_at(self.problems, index)
        given = ask_scorer(self.scorer, "score", *self.place, index, answer_part(completion))
        return float(given >= 1.0) if self.full_marks else given


def load_gym(parameters: Mapping[str, int | str], folder: Path | None) -> Gym:
    """Build the task. Parameters: `dataset` (a name of reasoning-gym), `seed`, `size`, `config` (JSON of its
    settings), `prefix` and `suffix` (text before and after each question), `full_marks` (1: partly right answers
    get nothing; many data sets give some credit to a text that merely contains the answer, and policies learn to
    exploit that). Raises TaskError."""
    place = _place(parameters)
    scorer = ConfinedFunction("roles.tasks.gym_scorer:act", seconds=30.0, memory=4 * 2**30, warm=[("warm", *place)])
    around = str(parameters.get("prefix", "")), str(parameters.get("suffix", ""))
    if max(map(len, around)) > MAX_AROUND:
        raise TaskError(f"prefix and suffix may have {MAX_AROUND} characters each")
    try:
        version = metadata.version("reasoning-gym")
    except metadata.PackageNotFoundError as error:
        raise TaskError(f"task {NAME} needs the package reasoning-gym: pip install 'intellect-node[tasks]'") from error
    full_marks = _flag(parameters, "full_marks")
    problems = _generate(scorer, place, around)
    marks = ("full marks",) if full_marks else ()
    digest = digest_of(SCORER_VERSION, version, *marks, *map(str, place), *texts_of(problems))
    return Gym(problems, digest, place, scorer, full_marks)


def _place(parameters: Mapping[str, int | str]) -> tuple[str, int, int, str]:
    name, config = str(parameters.get("dataset", "")), str(parameters.get("config", "{}"))
    seed, size = parameters.get("seed", 0), parameters.get("size", 1000)
    if not name:
        raise TaskError("parameter `dataset` names a data set of reasoning-gym, such as chain_sum")
    if not isinstance(size, int) or not 1 <= size <= MAX_PROBLEMS or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise TaskError(f"size must be from 1 to {MAX_PROBLEMS}, and seed from 0 to {2**31 - 1}")
    try:
        plain = json.loads(config)
    except ValueError as error:
        raise TaskError("config must be JSON, such as '{\"min_terms\": 2}'") from error
    if not isinstance(plain, dict) or {"seed", "size"} & plain.keys():
        raise TaskError("config must be a JSON object; seed and size are parameters of their own")
    return name, seed, size, json.dumps(plain, sort_keys=True)


def _flag(parameters: Mapping[str, int | str], name: str) -> bool:
    if parameters.get(name, 0) not in (0, 1):
        raise TaskError(f"{name} is 1 or 0")
    return bool(parameters.get(name, 0))


def _generate(
    scorer: ConfinedFunction, place: tuple[str, int, int, str], around: tuple[str, str]
) -> tuple[Problem, ...]:
    pairs: list[tuple[str, str]] = []
    try:
        while len(pairs) < place[2]:
            stop = min(len(pairs) + PAGE, place[2])
            pairs += scorer("page", *place, len(pairs), stop, seconds=120.0, most=MAX_PAGE)
    except (CallFailed, CallBroken) as error:
        raise TaskError(f"reasoning-gym cannot make {place[0]!r}: {error}") from error
    before, after = around
    return tuple(Problem(before + question + after, answer) for question, answer in pairs)
