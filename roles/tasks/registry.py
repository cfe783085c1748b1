"""The tasks that a run specification may name: those of this version, and installed plug-ins.

A plug-in is an entry point of the group `intellect_node.tasks`: a function from (parameters, data folder) to a `Task`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from roles.tasks.task import Task, TaskError

GROUP = "intellect_node.tasks"
Loader = Callable[[Mapping[str, int | str], Path | None], Task]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a task's loader is, and which parameters it accepts."""

    place: str  # module:function
    parameters: frozenset[str]


_TASKS = {
    "arithmetic": Entry("roles.tasks.arithmetic:load_arithmetic", frozenset({"size"})),
    "code": Entry("roles.tasks.code:load_code", frozenset({"data", "limit"})),
    "match": Entry("roles.tasks.match:load_match", frozenset({"data", "limit", "after"})),
    "maths": Entry("roles.tasks.maths:load_maths", frozenset({"data", "limit"})),
    "reasoning-gym": Entry(
        "roles.tasks.gym:load_gym",
        frozenset({"dataset", "seed", "size", "config", "prefix", "suffix", "full_marks"}),
    ),
    "verifiers": Entry("roles.tasks.environments:load_environment", frozenset({"taskset", "config", "size"})),
}
TASK_NAMES = tuple(sorted(_TASKS))


def load_task(name: str, parameters: Mapping[str, int | str], folder: Path | None = None) -> Task:
    """Build the named task; `folder` holds data sets under their digests. Raises TaskError, with the nearest known
    word, for an unknown name or parameter."""
    if name in _TASKS:
        entry = _TASKS[name]
        for key in parameters:
            if key not in entry.parameters:
                raise TaskError(f"task {name}: unknown parameter {key[:64]!r}{_nearest(key, entry.parameters)}")
        module, _, function = entry.place.partition(":")
        loader: Loader = getattr(import_module(module), function)
        return loader(parameters, folder)
    return _load_plugin(name, parameters, folder)


def _load_plugin(name: str, parameters: Mapping[str, int | str], folder: Path | None) -> Task:
    plugins = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in plugins:
        raise TaskError(
            f"unknown task {name[:64]!r}{_nearest(name, {*_TASKS, *plugins})}; where a plug-in has it, install the package that"
            " the run's operator names"
        )
    try:
        task: Task = plugins[name].load()(parameters, folder)
    except TaskError:
        raise
    except Exception as error:  # third-party code
        raise TaskError(f"the plug-in of task {name!r} failed: {type(error).__name__}: {error}"[:300]) from error
    return task


def _nearest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word[:64], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"
