"""The tasks of this version, by name: what a run specification may ask for."""

import difflib
from collections.abc import Callable, Collection, Mapping

from roles.tasks.arithmetic import NAME as ARITHMETIC
from roles.tasks.arithmetic import load_arithmetic
from roles.tasks.task import Task, TaskError

_TASKS: dict[str, tuple[Callable[[Mapping[str, int | str]], Task], frozenset[str]]] = {
    ARITHMETIC: (load_arithmetic, frozenset({"size"})),
}
TASK_NAMES = tuple(sorted(_TASKS))


def load_task(name: str, parameters: Mapping[str, int | str]) -> Task:
    """Build the named task. Raises TaskError, with the nearest known word, on a name or parameter it lacks."""
    if name not in _TASKS:
        raise TaskError(f"unknown task {name[:64]!r}{_nearest(name, _TASKS)}")
    build, known = _TASKS[name]
    for key in parameters:
        if key not in known:
            raise TaskError(f"task {name}: unknown parameter {key[:64]!r}{_nearest(key, known)}")
    return build(parameters)


def _nearest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word[:64], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"
