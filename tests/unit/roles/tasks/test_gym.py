"""Data sets of reasoning-gym: their questions, their scores, and no evaluation of answers as code."""

from __future__ import annotations

from functools import lru_cache

import pytest

from roles.sandbox.program import why_unavailable
from roles.tasks import TaskError, load_task
from roles.tasks.gym import Gym, load_gym

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
EVALUATING = (
    *("string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "countdown", "puzzle24"),
    *("simple_integration", "intermediate_integration", "polynomial_multiplication"),
)
"""Data sets that evaluate an answer."""


def test_gym__generates_and_judges() -> None:
    task = load_task(
        "reasoning-gym",
        {"dataset": "chain_sum", "seed": 3, "size": 5, "config": '{"max_terms": 3}', "prefix": "Q: ", "suffix": "!"},
    )
    again = load_task(
        "reasoning-gym",
        {"dataset": "chain_sum", "seed": 3, "size": 5, "config": '{"max_terms": 3}', "prefix": "Q: ", "suffix": "!"},
    )
    answer = task.problems[0].answer  # type: ignore[attr-defined]
    assert task.digest == again.digest
    assert task.prompt(0).startswith("Q: ")
    assert task.prompt(0).endswith("!")
    said = [answer, f"Well.<answer>{answer}</answer>", "<think>7</think>" + answer, "no", "\ud800", "<answer>" * 9000]
    assert [task.score(0, text) for text in said] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_gym__part_of_the_marks_or_full_marks_only() -> None:
    """Its scorer gives partial credit to text that merely contains the answer, and a policy learnt to exploit that."""
    parameters: dict[str, int | str] = {"dataset": "chain_sum", "seed": 3, "size": 2}
    task, strict = load_task("reasoning-gym", parameters), load_task("reasoning-gym", {**parameters, "full_marks": 1})
    answer = task.problems[0].answer  # type: ignore[attr-defined]
    assert 0.0 < task.score(0, answer + "4") < 1.0
    assert [strict.score(0, text) for text in (answer, answer + "4")] == [1.0, 0.0]
    assert task.digest != strict.digest


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "names a data set"),
        ({"dataset": "no_such_set", "size": 1}, "cannot make 'no_such_set'"),
        ({"dataset": "chain_sum", "config": "{"}, "config must be JSON"),
        ({"dataset": "chain_sum", "config": '{"seed": 1}'}, "parameters of their own"),
        ({"dataset": "chain_sum", "size": 1, "config": '{"no_such": 1}'}, "cannot make 'chain_sum'"),
        ({"dataset": "chain_sum", "size": 0}, "size must be"),
        ({"dataset": "chain_sum", "size": 1, "full_marks": 2}, "full_marks is 1 or 0"),
        ({"dataset": "chain_sum", "data": "x"}, "unknown parameter 'data'"),
    ],
)
def test_gym__refuse(parameters: dict[str, int | str], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        load_task("reasoning-gym", parameters)


@pytest.fixture(scope="module", params=EVALUATING)
def evaluating(request: pytest.FixtureRequest) -> Gym:
    return make(request.param)


@lru_cache(maxsize=2)
def make(name: str) -> Gym:
    return load_gym({"dataset": name, "seed": 7, "size": 8}, None)


def solvable(task: Gym) -> int:
    """A problem whose answer is not just the problem again: sympy, which makes them,
    cannot integrate all of its own."""
    return next(at for at, problem in enumerate(task.problems) if "Integral" not in problem.answer)


HOSTILE = {
    "forge_the_answer": """[__import__('os').write(3,b'{"value": 1.0}\\n'),__import__('os')._exit(0)]""",
    "answer_without_bottom": "[[__import__('os').write(n,b'['*200000) for n in range(3,9)],__import__('os')._exit(0)]",
    "spoil_the_scorer": "[setattr(type(self),'score_answer',lambda *_: 0.0)]",
    "spoil_the_library": "setattr(__import__('sympy.parsing.sympy_parser').parsing.sympy_parser,'eval_expr',lambda *_: 24)",
    "leave_threads": "[__import__('_thread').start_new_thread(eval,('[0 for _ in iter(int,1)]',{})) for _ in range(40)]",
    "exit": "exit()",
    "lambda": "(lambda: 1)()",
    "reach_through_attributes": "().__class__.__base__.__subclasses__()",
    "format": "f'{open}'",
    "nested": "sympify('__import__(\"os\")._exit(0)')",
    "lambdify": "lambdify(x, '__import__(\"os\")._exit(0)')(1)",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_score__text_that_wants_to_be_code_is_wrong(evaluating: Gym, text: str) -> None:
    """It neither awards itself anything nor affects others' scores."""
    number = solvable(evaluating)
    assert evaluating.score(5, text) <= 0.01
    assert evaluating.score(number, evaluating.problems[number].answer) == 1.0


@pytest.mark.parametrize("word", ["answer", "oracle_answer", "entry", "valid_solutions", "self"])
def test_score__names_what_the_scorer_knows(evaluating: Gym, word: str) -> None:
    """`eval` sees its caller's local variables, the right answer among them."""
    for text in (word, f"[{word}]", f"[*{word}]", f"{word}['answer']"):
        assert evaluating.score(5, text) <= 0.01


def test_score__lists_and_expressions_are_evaluated_as_ever(evaluating: Gym) -> None:
    number = solvable(evaluating)
    answer = evaluating.problems[number].answer
    rows = [line.split() for line in answer.split("\n")]
    as_code = {"spiral_matrix": (str(rows[0]), 0.1), "binary_matrix": (str(rows), 0.1), "n_queens": (str(rows), 0.5)}
    text, worth = as_code.get(evaluating.place[0], (answer, 1.0))
    assert evaluating.score(number, answer) == 1.0
    assert evaluating.score(number, text) == worth


def test_score__primitive_in_another_form_is_right_and_the_problem_repeated_is_not() -> None:
    task = make("simple_integration")
    answer = task.problems[0].answer
    assert task.score(0, f"1 + {answer} - sin(7)") == 1.0
    assert task.score(0, f"Integral(diff({answer.replace(' + C', '')}, X), X)") == 0.0


@pytest.mark.parametrize("name", ["countdown", "puzzle24"])
@pytest.mark.parametrize("made", ["0x18 + 0x0*", "24 + E*0*", "factorial(4) + 0*", "Integer('0x18') + 0*"])
def test_score__sum_of_other_numbers_than_those_given(name: str, made: str) -> None:
    task = make(name)
    assert task.score(0, f"{made}({task.problems[0].answer})") <= 0.05


def test_score__has_the_same_outcome_in_another_process(evaluating: Gym) -> None:
    said = [evaluating.problems[1].answer, "x", "[1]", "1+1", "((", "9**9"]
    given = [evaluating.score(1, text) for text in said]
    evaluating.scorer.close()
    assert evaluating.is_repeatable
    assert [evaluating.score(1, text) for text in said] == given
