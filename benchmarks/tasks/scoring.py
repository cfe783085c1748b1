"""Scorings per second of each task, on right and wrong answers in turn."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tasks.answers import OTHER, SAME
from roles.tasks import Task, load_task
from roles.turns.calculator import load_calculator

CODE = "```python\nprint(sum(map(int, input().split())))\n```"
GYM: Mapping[str, int | str] = {"dataset": "chain_sum", "seed": 1, "size": 64}


@dataclass(frozen=True, slots=True)
class Rate:
    """Number of scorings, the time they took, and the number of threads."""

    name: str
    scorings: int
    seconds: float
    threads: int

    @property
    def a_second(self) -> float:
        return self.scorings / self.seconds


def measure_all(seconds: float) -> list[Rate]:
    """Rates of every built-in task, and of the calculator's answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [
            _measure("arithmetic", _ask(load_task("arithmetic", {}), ["7+4=11;11+9=20;#20", "no"]), seconds),
            _measure("match", _ask(_with_data(folder, "match", {"answer": "12"}), ["12", "13"]), seconds),
            _measure("maths", _maths(folder), seconds),
            _measure("reasoning-gym", _ask(load_task("reasoning-gym", GYM), ["12", "so it is 13"]), seconds),
            _measure("code", _ask(_with_data(folder, "code", _ADD), [CODE]), seconds, threads=2),
        ]
    calculator = load_calculator({})
    return [*found, _measure("calculator", lambda number: calculator.answer(f"({number}+4)*3/7"), seconds)]


_ADD = {"tests": {"inputs": ["1 2\n"], "outputs": ["3\n"]}}


def _with_data(folder: Path, name: str, *rows: Mapping[str, object]) -> Task:
    data = "".join(json.dumps({"prompt": "What is it?", **row}) + "\n" for row in rows).encode()
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return load_task(name, {"data": digest}, folder)


def _maths(folder: Path) -> Callable[[int], object]:
    pairs = SAME + OTHER
    task = _with_data(folder, "maths", *({"answer": answer} for _, answer, _, _ in pairs))
    return lambda number: task.score(number % len(pairs), pairs[number % len(pairs)][2])


def _ask(task: Task, completions: Sequence[str]) -> Callable[[int], object]:
    return lambda number: task.score(number % task.size, completions[number % len(completions)])


def _measure(name: str, score: Callable[[int], object], seconds: float, threads: int = 1) -> Rate:
    score(0)  # starts what is kept between calls
    began = time.perf_counter()

    def work(first: int) -> int:
        number = first
        while time.perf_counter() - began < seconds:
            score(number)
            number += threads
        return (number - first) // threads

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    return Rate(name, done, time.perf_counter() - began, threads)
