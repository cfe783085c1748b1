"""The maths scorer on human-style answers: what is right, and what only looks right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from benchmarks.tasks.answers import MISSED, OTHER, SAME
from roles.sandbox.program import why_unavailable
from roles.tasks import Task, TaskError, Undecided, load_task
from roles.tasks.answers import answer_part
from roles.tasks.maths import Maths

needs_sandbox = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

AGREE = [(answer, said) for _, answer, said, _ in SAME]
DIFFER = [(answer, said) for _, answer, said, _ in (*OTHER, *MISSED)]


def keep(folder: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """A data set in `folder`; its digest."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    digest = sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return digest


@pytest.fixture(scope="module")
def maths(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("tasks")
    answers = [answer for answer, _ in (*AGREE, *DIFFER)]
    digest = keep(folder, [{"prompt": "What is it?", "answer": answer} for answer in answers])
    return load_task("maths", {"data": digest}, folder)


@needs_sandbox
@pytest.mark.parametrize("number", range(len(AGREE)), ids=[f"{a} : {c}" for a, c in AGREE])
def test_score__agrees(maths: Task, number: int) -> None:
    assert maths.score(number, AGREE[number][1]) == 1.0


@needs_sandbox
@pytest.mark.parametrize("number", range(len(DIFFER)), ids=[f"{a} : {c}" for a, c in DIFFER])
def test_score__differs(maths: Task, number: int) -> None:
    assert maths.score(len(AGREE) + number, DIFFER[number][1]) == 0.0


@needs_sandbox
@pytest.mark.parametrize(
    "text", ["\0", "\ud800", "\\boxed{" * 5000, "$" * 10000, "}{" * 100, "\\frac{1}{0}", "x" * 500_000]
)
def test_score__any_text_has_a_score(maths: Task, text: str) -> None:
    assert maths.score(0, text) == 0.0


@needs_sandbox
def test_score__endless_answer_costs_that_sample_only(maths: Task) -> None:
    """BOX-06"""
    assert isinstance(maths, Maths)
    quick = Maths(maths.problems, maths.digest, scorer=type(maths.scorer)(maths.scorer.place, seconds=2.0))
    assert quick.score(0, AGREE[0][1]) == 1.0
    try:
        assert quick.score(0, r"\boxed{9^{9^{9^{9^{9}}}}}") == 0.0
    except Undecided:
        pass  # how far sympy gets depends on the machine
    assert quick.score(0, AGREE[0][1]) == 1.0


def test_load__other_problems_have_another_digest(tmp_path: Path) -> None:
    one, two = ({"prompt": "p", "answer": answer} for answer in "12")
    first, second = (load_task("maths", {"data": keep(tmp_path, [row])}, tmp_path) for row in (one, two))
    assert first.digest != second.digest


def test_load__without_its_data_set_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is not on this machine"):
        load_task("maths", {"data": "0" * 64}, tmp_path)


@pytest.mark.parametrize(
    ("text", "part"),
    [("4", "4"), ("<think>3</think>4", "4"), ("a</think>b</think>c", "c"), ("<think>3", ""), ("y" * 500_000, "")],
)
def test_answer_part__is_what_follows_the_thinking(text: str, part: str) -> None:
    assert answer_part(text) == part
