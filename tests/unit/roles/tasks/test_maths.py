"""The maths scorer on answers in the forms people write them: what is right, and what only looks like it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from roles.sandbox.program import why_unavailable
from roles.tasks import Task, TaskError, Undecided, load_task
from roles.tasks.answers import answer_part
from roles.tasks.maths import Maths

needs_sandbox = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

AGREE = [
    ("1/2", r"\boxed{\frac{1}{2}}"),
    ("1/2", r"\boxed{\dfrac12}"),
    ("1/2", r"\boxed{0.5}"),
    ("0.5", r"\boxed{1/2}"),
    ("0.5", r"\boxed{.5}"),
    (r"\frac{3}{4}", r"\boxed{75\%}"),
    (r"2\frac{1}{2}", r"\boxed{2.5}"),
    (r"-\frac{2}{3}", r"\boxed{\frac{-2}{3}}"),
    ("12", "The answer is 12."),
    ("12", "The final answer is $12$."),
    ("12", r"\boxed{12.0}"),
    ("-7", r"\boxed{-7}"),
    ("10,000", r"\boxed{10000}"),
    ("10000", r"\boxed{10{,}000}"),
    ("50\\%", r"\boxed{50\%}"),
    ("50\\%", r"\boxed{50}"),
    ("5", r"\boxed{5\text{ cm}}"),
    ("5", r"\boxed{5\,\mathrm{m}}"),
    ("20", r"\boxed{\$20}"),
    ("90", r"\boxed{90^\circ}"),
    ("(1,2)", r"\boxed{(1, 2)}"),
    ("(1,2)", r"\boxed{\left(1,2\right)}"),
    ("[0,1)", r"\boxed{[0,1)}"),
    (r"(-\infty, 3]", r"\boxed{(-\infty,3]}"),
    (r"[0,1)\cup(2,3]", r"\boxed{(2,3]\cup[0,1)}"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    (r"\{1,2,3\}", r"\boxed{\{1, 2, 3\}}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    ("2x", r"\boxed{x+x}"),
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
    (r"\frac{1}{\sqrt{2}}", r"\boxed{\frac{\sqrt{2}}{2}}"),
    (r"2^{10}", r"\boxed{1024}"),
    (r"\pi", r"\boxed{\pi}"),
    (r"4\pi", r"\boxed{\pi\cdot 4}"),
    (r"\ln 4", r"\boxed{2\ln 2}"),
    ("x=5", r"\boxed{5}"),
    ("5", r"\boxed{x=5}"),
    ("A", r"\boxed{A}"),
    (r"\text{east}", r"\boxed{\text{east}}"),
    ("4", r"\boxed{3} no, \boxed{4}"),
    ("4", r"<think>maybe \boxed{3}</think> It is \boxed{4}."),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
]
DIFFER = [
    ("3", r"\boxed{4}"),
    ("3", r"\boxed{-3}"),
    ("3", r"\boxed{3} no, \boxed{4}"),
    ("3", r"\boxed{1,2,3}"),
    ("3", r"\boxed{3 \text{ or } 4}"),
    ("3", "1 2 3 4 5"),
    ("3", "$1$ $2$ $3$ $9$"),
    ("3", "x=3, x=4, x=9"),
    ("3", r"<think>\boxed{3}"),
    ("3", r"<think>\boxed{3}</think> It is \boxed{5}."),
    ("3", ""),
    ("3", r"\boxed{}"),
    ("3", r"\boxed{3"[:6]),
    ("1/2", r"\boxed{1/3}"),
    ("1/3", r"\boxed{0.33}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("[0,1)", r"\boxed{[0,1]}"),
    ("[0,1)", r"\boxed{(0,1)}"),
    (r"\{1,2\}", r"\boxed{\{1,2,3\}}"),
    ("x^2+2x+1", r"\boxed{(x-1)^2}"),
    (r"\sqrt{8}", r"\boxed{2}"),
    ("A", r"\boxed{B}"),
    (r"\text{east}", r"\boxed{\text{west}}"),
    (r"\pi", r"\boxed{3.14}"),
]


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
