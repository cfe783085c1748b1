"""The calculator answers any text, exactly and without `eval`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.tasks import TaskError
from roles.turns.calculator import ERROR, load_calculator
from roles.turns.tool import load_tool, load_tool_use

CALCULATOR = load_calculator({})


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("7+4", "11"),
        ("7 + 4 ", "11"),
        ("so that is 3*(4+1)", "15"),
        ("-3--4", "1"),
        ("2*-3", "-6"),
        ("1/8", "0.125"),
        ("2/3", "0.666666666667"),
        ("100000000000.3", "100000000000"),
        ("200000000000+1/3", "200000000000"),
        ("0.1+0.2", "0.3"),
        ("1/1000000000000000", "0"),
        ("7+4=11;11+9", "20"),
        ("12/(3-3)", ERROR),
        ("999999999999*9", ERROR),
        ("", ERROR),
        ("(", ERROR),
        ("1+", ERROR),
        ("1 2", ERROR),
        ("2**9", ERROR),
        ("__import__('os')", ERROR),
        ("two plus two", ERROR),
        ("1_000+1", "1"),
        ("٣+١", ERROR),
    ],
)
def test_answer__value_or_error(call: str, answer: str) -> None:
    assert CALCULATOR.answer(call) == answer


@given(st.text(alphabet="0123456789+-*/(). ", max_size=400))
def test_answer__total_and_bounded(call: str) -> None:
    answer = CALCULATOR.answer(call)
    assert answer == ERROR or (len(answer) <= 32 and answer.lstrip("-")[0].isdigit())


def test_answer__writes_what_the_run_wants_behind_it() -> None:
    assert load_calculator({"opening": "<<", "after": ">>"}).answer("6*7") == "42>>"


@pytest.mark.parametrize(
    "bad", [{"closing": ""}, {"closing": "a b"}, {"opening": "«"}, {"after": "x" * 17}, {"open": "<"}]
)
def test_load_calculator__refuses(bad: dict[str, int | str]) -> None:
    with pytest.raises(TaskError, match="tool calculator"):
        load_calculator(bad)


def test_load_tool__unknown_names_the_nearest() -> None:
    with pytest.raises(TaskError, match="did you mean 'calculator'"):
        load_tool("calculater", {})


def test_load_tool__absent_says_what_to_do() -> None:
    with pytest.raises(TaskError, match="install the package"):
        load_tool("search", {})


def test_load_tool_use__another_version_is_refused() -> None:
    from roles.spec import ToolSpec

    with pytest.raises(TaskError, match="may answer otherwise"):
        load_tool_use(ToolSpec(name="calculator", digest="ab" * 32))
    assert load_tool_use(None) is None
