"""A confined function: what it answers, and what it costs when it misbehaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roles.sandbox.function import CallBroken, CallFailed, ConfinedFunction
from roles.sandbox.program import why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
PLACE = "tests.unit.roles.sandbox.hostile_scorer:act"


@pytest.fixture(scope="module")
def act() -> Iterator[ConfinedFunction]:
    function = ConfinedFunction(PLACE, seconds=30.0)
    yield function
    function.close()


def test_call__gives_the_result(act: ConfinedFunction) -> None:
    assert act("echo") == [1, "two", None]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raise", "ValueError: no"),
        ("exit", "SystemExit: 3"),
        ("read", "PermissionError"),
        ("nothing json", "TypeError"),
    ],
)
def test_call__misbehaviour_costs_that_call_only(act: ConfinedFunction, what: str, reason: str) -> None:
    with pytest.raises(CallFailed, match=reason):
        act(what)
    assert act("echo") == [1, "two", None]


@pytest.mark.parametrize(
    ("what", "reason"), [("die", "its process ended"), ("flood", "answer without end"), ("hang", "took too long")]
)
def test_call__breaking_off_is_told_apart_from_a_wrong_answer(act: ConfinedFunction, what: str, reason: str) -> None:
    """BOX-06: a time-out is no wrong answer."""
    act("echo")
    with pytest.raises(CallBroken, match=reason):
        act(what, seconds=0.5 if what == "hang" else None)
    assert act("echo") == [1, "two", None]


def test_call__printing_forges_no_answer(act: ConfinedFunction) -> None:
    assert act("print") == 0.0


def test_call__arguments_are_bounded(act: ConfinedFunction) -> None:
    with pytest.raises(CallFailed, match="arguments of more than"):
        act("x" * 2**21)


def test_call__large_arguments_arrive(act: ConfinedFunction) -> None:
    assert act("y" * 500_000) == "y" * 500_000


def test_call__module_that_is_absent_is_named() -> None:
    with pytest.raises(CallFailed, match="ModuleNotFoundError"):
        ConfinedFunction("no_such_module:score")("x")


def test_call__process_is_kept_between_calls(act: ConfinedFunction) -> None:
    act("echo")
    children = Path("/proc/self/task", str(_thread()), "children").read_text()
    act("echo")
    assert Path("/proc/self/task", str(_thread()), "children").read_text() == children


def _thread() -> int:
    import threading

    return threading.get_native_id() if sys.platform == "linux" else 0
