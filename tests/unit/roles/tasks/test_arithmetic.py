"""The default task: what scores, what does not, and that its list is reasoning-gym's."""

import subprocess
import sys
import time

import pytest

from roles.tasks import TaskError, load_task
from roles.tasks.arithmetic import Arithmetic, compute_digest, compute_solution, load_problems


def make_task(*problems: str) -> Arithmetic:
    chosen = problems or ("7+4+9+6",)
    return Arithmetic(problems=chosen, digest=compute_digest(chosen))


def test_compute_solution__worked_value() -> None:
    assert compute_solution((7, 4, 9, 6)) == "7+4=11;11+9=20;20+6=26;#26"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("7+4=11;11+9=20;20+6=26;#26", 1.0),
        (";#26", 1.0),  # only the answer is judged
        ("7+4=12;12+9=20;20+6=26;#26", 1.0),
        ("7+4=11;11+9=20;20+6=26;26.", 0.0),  # the two endings the policy also knows
        ("7+4=11;11+9=20;20+6=26;=26", 0.0),
        ("#26", 0.0),  # no separator
        ("7+4=11;#27", 0.0),
        ("7+4=11;#26 ", 0.0),
        ("7+4=11;#26\n", 0.0),
        ("7+4=11;#026", 0.0),
        ("7+4=11;#+26", 0.0),
        ("7+4=11;#26.0", 0.0),
        ("7+4=11;# 26", 0.0),
        ("7+4=11;##26", 0.0),
        ("#25;#26", 0.0),  # two answers
        (";#1;#2;#3;#26", 0.0),
        ("7+4=11;#٢٦", 0.0),  # other scripts' digits
        ("7+4=11;#\N{FULLWIDTH DIGIT TWO}6", 0.0),
        ("7+4=11;#26\x00", 0.0),
        ("", 0.0),
        (";", 0.0),
        ("\ud800;#26", 1.0),  # a lone surrogate in the working is text like any other
    ],
)
def test_score__table(completion: str, score: float) -> None:
    assert make_task().score(0, completion) == score


@pytest.mark.parametrize("text", [";" * 10_000_000, "#" * 10_000_000, "9" * 10_000_000, "1" * 10_000_000 + ";#26"])
def test_score__hostile_text_is_wrong_at_once(text: str) -> None:
    started = time.perf_counter()
    assert make_task().score(0, text) == 0.0
    assert time.perf_counter() - started < 0.1


def test_score__every_written_solution_is_right() -> None:
    task = load_task("arithmetic", {})
    assert isinstance(task, Arithmetic)
    assert all(task.score(index, compute_solution(task.terms(index))) == 1.0 for index in range(task.size))


def test_prompt__is_the_sum_and_a_mark() -> None:
    assert make_task().prompt(0) == "7+4+9+6>"


@pytest.mark.parametrize("index", [-1, 1])
def test_prompt__index_outside_the_list(index: int) -> None:
    with pytest.raises(IndexError):
        make_task().prompt(index)


def test_load_task__digest_is_pinned() -> None:
    """A change here is a new scorer or a new list: runs made with the old one would no longer verify."""
    task = load_task("arithmetic", {})
    assert (task.name, task.size) == ("arithmetic", 2048)
    assert task.digest == "50ea15fbcc005d5ebda91391edddd21b7f7a8eaac795fe3257e2fb5489df7219"


def test_load_task__size_takes_a_prefix_under_another_digest() -> None:
    whole, part = load_task("arithmetic", {}), load_task("arithmetic", {"size": 10})
    assert part.size == 10
    assert part.prompt(9) == whole.prompt(9)
    assert part.digest != whole.digest


@pytest.mark.parametrize("size", [0, -1, 2049, True, "10"])
def test_load_task__refuse_size(size: int | str) -> None:
    with pytest.raises(TaskError, match="size must be a whole number from 1 to 2048"):
        load_task("arithmetic", {"size": size})


def test_load_task__unknown_name_says_what_was_meant() -> None:
    with pytest.raises(TaskError, match="unknown task 'arithmatic'; did you mean 'arithmetic'"):
        load_task("arithmatic", {})


def test_load_task__unknown_parameter_says_what_is_known() -> None:
    with pytest.raises(TaskError, match="unknown parameter 'seed'; known: size"):
        load_task("arithmetic", {"seed": 1})


def test_load_task__imports_nothing_heavy() -> None:
    code = (
        "import sys; from roles.tasks import load_task; load_task('arithmetic', {});"
        "sys.exit(bool({'torch', 'reasoning_gym', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_load_problems__reasoning_gym_gives_the_same_list() -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    dataset = reasoning_gym.create_dataset(
        "chain_sum", seed=2, size=40_000, min_terms=4, max_terms=5, min_digits=1, max_digits=1, allow_negation=False
    )
    drawn = (dataset[index]["metadata"]["expression"].replace(" ", "") for index in range(40_000))
    assert tuple(dict.fromkeys(text for text in drawn if "-" not in text))[:2048] == load_problems()
