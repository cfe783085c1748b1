"""The code scorer: programs that solve, fail, cheat and hang. They really run, in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from roles.sandbox.program import Limits, why_unavailable
from roles.tasks import TaskError, Undecided
from roles.tasks.code import Code, find_program, parse_tests
from roles.tasks.problems import Problem

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
ADD = {"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]}
TWICE = {"function": "twice", "inputs": [[2], ["ab"]], "outputs": [4, "abab"]}


def make_code(tests: Mapping[str, object] = ADD, *, limits: Limits | None = None) -> Code:
    problem = Problem("Do it.", json.dumps(tests))
    return Code((problem,), digest="0" * 64, limits=limits or Limits(cpu_seconds=2, wall_seconds=20.0))


def test_score__program_that_solves_it__box_04() -> None:
    assert make_code().score(0, "Here:\n```python\nprint(sum(map(int, input().split())))\n```\nDone.") == 1.0


def test_score__function_that_solves_it() -> None:
    assert make_code(TWICE).score(0, "```python\ndef twice(x):\n    print('working')\n    return x + x\n```") == 1.0


def test_score__last_block_counts() -> None:
    assert (
        make_code().score(0, "```python\nprint(0)\n```\n```python\nprint(sum(map(int, input().split())))\n```") == 1.0
    )


WRONG = {
    "wrong": "print(0)",
    "right_on_the_first_test_only": "print(3)",
    "syntax_error": "print(",
    "raises": "1 / 0",
    "exits_early": "raise SystemExit(0)",
    "prints_nothing": "pass",
    "leaves_with_a_right_looking_status": "import os; os._exit(0)",
    "reads_the_tests": "import glob; print(open(glob.glob('/**/*.jsonl', recursive=True)[0]).read())",
    "looks_in_the_frames": "import sys\nf = sys._getframe()\nwhile f: print(f.f_locals.get('wanted')); f = f.f_back",
    "patches_the_comparison": "class A(str):\n    __eq__ = lambda self, other: True\nprint(A('x'))",
    "floods": "while True: print('3')",
    "takes_all_memory": "x = bytearray(10**11); print(3)",
    "forks": "import os; os.fork(); print(3)",
    "asks_the_network": "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:1').read())",
    "binary_output": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "right_but_then_dies": "print(sum(map(int, input().split())), flush=True); import os; os.abort()",
}


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG.keys())
def test_score__program_that_does_not_earn(program: str) -> None:
    assert make_code().score(0, f"```python\n{program}\n```") == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "def twice(x): return AlwaysEqual()\nclass AlwaysEqual:\n    def __eq__(self, other): return True",
        "twice = None",
        "def twice(x): raise SystemExit(0)",
        "def twice(x):\n    print(4)\n    raise SystemExit(0)",
        "import json\njson.dumps = lambda value: 'true'\ndef twice(x): return 1",
        "def twice(x):\n    x = []\n    x.append(x)\n    return x",
    ],
)
def test_score__function_that_does_not_earn(program: str) -> None:
    assert make_code(TWICE).score(0, f"```python\n{program}\n```") == 0.0


def test_score__running_out_of_time_is_undecided__box_06() -> None:
    """BOX-06: a slow machine proves no lie."""
    with pytest.raises(Undecided, match="past its time"):
        make_code(limits=Limits(cpu_seconds=1, wall_seconds=20.0)).score(0, "while True: pass")


def test_score__wrong_and_slow_is_wrong() -> None:
    slow_then_wrong = "n = input()\nif n == '1 2':\n    while True: pass\nprint('no')"
    assert make_code(limits=Limits(cpu_seconds=1, wall_seconds=20.0)).score(0, slow_then_wrong) == 0.0


def test_is_repeatable__is_not() -> None:
    assert not make_code().is_repeatable


def test_find_program__text_without_a_block_is_the_program() -> None:
    assert find_program(" print(1)\n") == "print(1)"


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("{}", "of one length"),
        ('{"inputs": ["1"], "outputs": []}', "of one length"),
        ('{"inputs": [], "outputs": []}', "1 to 10 tests"),
        ('{"inputs": [1], "outputs": ["1"]}', "are texts"),
        ('{"function": "a b", "inputs": [[1]], "outputs": [1]}', "name of a function"),
        ('{"function": "f", "inputs": [1], "outputs": [1]}', "lists of arguments"),
        ("[" * 100_000, "of one length"),
    ],
)
def test_parse_tests__refuse(tests: str, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        parse_tests(tests)


def test_parse_tests__known_fields(tmp_path: Path) -> None:
    assert parse_tests(json.dumps(TWICE)).cases == (([2], 4), (["ab"], "abab"))
