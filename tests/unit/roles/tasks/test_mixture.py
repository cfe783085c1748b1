"""Several tasks combined into one, and plug-ins."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

from roles.spec import TaskSpec
from roles.tasks import TaskError, load_task, load_tasks
from roles.tasks.mixture import Mixture


def listed(size: int, weight: int = 1) -> TaskSpec:
    task = load_task("arithmetic", {"size": size})
    return TaskSpec(name="arithmetic", parameters={"size": size}, size=size, digest=task.digest, weight=weight)


def test_load_tasks__one_is_itself() -> None:
    assert load_tasks([listed(10)]).digest == listed(10).digest


def test_load_tasks__share_follows_the_weight() -> None:
    mixed = load_tasks([listed(10, 3), listed(40, 1)])
    assert isinstance(mixed, Mixture)
    places = [mixed.place(index) for index in range(mixed.size)]
    assert Counter(task.size for task, _ in places) == {10: 120, 40: 40}
    assert set(Counter(inner for task, inner in places if task.size == 10).values()) == {12}


def test_load_tasks__problem_is_asked_and_scored_by_its_own_task() -> None:
    mixed = load_tasks([listed(10, 3), listed(40, 1)])
    assert mixed.prompt(7) == load_task("arithmetic", {"size": 40}).prompt(1)
    with pytest.raises(IndexError):
        mixed.prompt(mixed.size)
    with pytest.raises(IndexError):
        mixed.score(-1, "")


def test_load_tasks__other_weights_are_another_task() -> None:
    assert load_tasks([listed(10, 3), listed(40)]).digest != load_tasks([listed(10), listed(40)]).digest


def test_load_tasks__what_differs_from_the_spec_is_named() -> None:
    other = listed(10).model_copy(update={"digest": "0" * 64})
    with pytest.raises(TaskError, match="the task arithmetic of this installation is not the run's"):
        load_tasks([other])


def test_load_task__plug_in_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(
        tmp_path,
        monkeypatch,
        body="from roles.tasks import load_task\ndef load(p, f): return load_task('arithmetic', p)",
    )
    assert load_task("sums-again", {"size": 3}).size == 3


def test_load_task__plug_in_that_breaks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, body="def load(p, f): raise RuntimeError('no licence')")
    with pytest.raises(TaskError, match="the plug-in of task 'sums-again' failed: RuntimeError: no licence"):
        load_task("sums-again", {})


def test_load_task__absent_plug_in_is_refused_with_what_there_is() -> None:
    with pytest.raises(TaskError, match="unknown task 'sums-again'; known: arithmetic, code"):
        load_task("sums-again", {})


def install_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, *, body: str) -> None:
    """A distribution as pip would leave it."""
    name = f"plugin_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[intellect_node.tasks]\nsums-again = {name}:load\n")
    monkeypatch.syspath_prepend(folder)
    assert metadata.entry_points(group="intellect_node.tasks")
