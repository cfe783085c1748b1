"""Task sets of the `verifiers` library: one question and one answer, scored in the
sandbox; others are refused by name."""

from __future__ import annotations

import json

import pytest

from roles.sandbox.program import why_unavailable
from roles.tasks import Task, TaskError, load_task

pytest.importorskip("verifiers.v1", reason="pip install 'intellect-node[environments]'")
pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
SET = "tests.unit.roles.tasks.sums_taskset"


def load(**config: int | str) -> Task:
    return load_task("verifiers", {"taskset": SET, "size": 3, "config": json.dumps(config)})


def test_environment__asks_and_judges() -> None:
    task, again = load(), load()
    assert (task.size, task.digest) == (3, again.digest)
    assert task.prompt(1) == "Add.\n\n2+1="
    assert [task.score(1, text) for text in ("3", "<think>9</think>3", "it is 3", "4", "\ud800")] == [
        1.0,
        1.0,
        0.0,
        0.25,
        0.25,
    ]
    assert not task.is_repeatable


def test_environment__reward_that_evaluates_gives_code_nothing() -> None:
    task = load(kind="evaluated")
    said = ["3", "1 + 2", "task.answer", "type('', (), {'__eq__': lambda *_: True})()", "__import__('os')._exit(0)"]
    assert [task.score(1, text) for text in said] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_environment__other_settings_are_another_task() -> None:
    assert load(first=2).prompt(0) == "Add.\n\n2+1="
    assert load(first=2).digest != load().digest


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"kind": "contained"}, "it runs in a container"),
        ({"kind": "fetched"}, "its rewards need a runtime"),
        ({"kind": "online"}, "cannot be used"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_environment__refuses_what_it_cannot_run(config: dict[str, int | str], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        load(**config)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "names the module"),
        ({"taskset": "no_such_module_here", "size": 1}, "No module named"),
        ({"taskset": "json", "size": 1}, "must export one Taskset"),
        ({"taskset": SET, "size": 99}, "has 8 tasks, not 99"),
        ({"taskset": SET, "config": "["}, "config must be JSON"),
    ],
)
def test_load_environment__refuse(parameters: dict[str, int | str], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        load_task("verifiers", parameters)
