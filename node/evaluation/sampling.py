"""Samples a checkpoint on a task's problems. Every score is stored on disk as it comes, so
an interrupted run can resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dht.encoding import digest
from node.errors import ConfigError
from node.line_file import LineFile
from roles.assignment import TWO_63, draw
from roles.inference.engine import Engine, Request, SamplingSettings
from roles.tasks import Task, Undecided
from roles.turns import ToolUse, speak

MAX_LINE = 1 << 20
Heard = Callable[[int, Sequence[tuple[str, float]]], None]
"""Called with a problem, and the text and score of each of its completions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to sample: the first `problems` of the task, `samples` each, with seeds that depend on `seed` alone."""

    checkpoint: str  # digest of its weights
    task: str  # digest
    problems: int
    samples: int
    seed: int
    settings: SamplingSettings
    tool: str = ""  # digest, calls and tokens per answer; empty for none
    manner: str = ""  # non-default settings of the run: dtype, engine, chat template

    @property
    def name(self) -> str:
        """Identifies the plan: two plans with the same name give the same scores."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("tool", "manner") or value}
        return digest("evaluation/1", json.dumps(plain, sort_keys=True))


class Scores:
    """Scores by problem, in a file with one line each. The first line names the plan they belong to."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._file = LineFile(path, longest=MAX_LINE)
        self.table: dict[int, list[float]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._read(plan):
            self._file.repair()
        else:
            self._file.begin({"plan": plan.name})

    def add(self, problem: int, scores: Sequence[float]) -> None:
        """Store the scores of a problem; they are on disk when this returns."""
        self._file.append({"problem": problem, "scores": list(scores)})
        self.table[problem] = list(scores)

    def _read(self, plan: Plan) -> bool:
        """Load what was stored before. Returns whether there was anything, even if only the header. Raises
        ConfigError for another plan's file."""
        try:
            lines = self._file.read()
            if not lines:
                return False
            if lines[0]["plan"] != plan.name:
                raise ConfigError(f"{self._path} holds another evaluation; delete it or name another file by --keep")
            for kept in lines[1:]:
                self.table[int(kept["problem"])] = [float(score) for score in kept["scores"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{self._path} is no file of scores; delete it or name another by --keep") from error
        return True


def run_plan(
    plan: Plan,
    *,
    engine: Engine,
    task: Task,
    scores: Scores,
    batch: int,
    use: ToolUse | None = None,
    said: Callable[[int], None] = lambda done: None,
    heard: Heard = lambda problem, scored: None,
) -> None:
    """Sample what is missing, `batch` completions at a time (at least one problem's). `said` is called with the number
    of problems done, `heard` with the completions of each problem sampled now. The engine must hold the checkpoint."""
    missing = [problem for problem in range(plan.problems) if problem not in scores.table]
    said(len(scores.table))
    for problems in _batches(missing, max(1, batch // plan.samples)):
        requests = [request for problem in problems for request in _requests(plan, problem, engine, task)]
        completions = speak(engine, requests, plan.settings, use)
        for number, problem in enumerate(problems):
            own = completions[number * plan.samples : (number + 1) * plan.samples]
            texts = [engine.decode(each.tokens) for each in own]
            scored = [(text, _score(task, problem, text)) for text in texts]
            heard(problem, scored)
            scores.add(problem, [score for _, score in scored])
        said(len(scores.table))


def _requests(plan: Plan, problem: int, engine: Engine, task: Task) -> list[Request]:
    prompt, seed = engine.encode(task.prompt(problem)), digest("evaluation/1", plan.seed, problem)
    return [Request(prompt, draw(seed, "sample", number, TWO_63)) for number in range(plan.samples)]


def _score(task: Task, problem: int, text: str) -> float:
    try:
        return task.score(problem, text)
    except Undecided:
        return 0.0


def _batches(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
