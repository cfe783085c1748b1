"""A confined function: its results, and what its misbehaviour costs."""

from __future__ import annotations

import threading
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
        ("thread", "can't start new thread"),
        ("fork", "PermissionError"),
        ("answer in another's place", "no JSON"),
        ("answer without bottom", "no JSON"),
    ],
)
def test_call__misbehaviour_costs_that_call_only(act: ConfinedFunction, what: str, reason: str) -> None:
    with pytest.raises(CallFailed, match=reason):
        act(what)
    assert act("echo") == [1, "two", None]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("die", "its process ended"),
        ("flood", "answer without end"),
        ("hang", "took too long"),
        ("hang, deaf to its time", "took too long"),
        ("take all memory", "out of memory"),
    ],
)
def test_call__breaking_off_is_told_apart_from_a_wrong_answer(act: ConfinedFunction, what: str, reason: str) -> None:
    """BOX-06: a timeout is not a wrong answer."""
    act("echo")
    with pytest.raises(CallBroken, match=reason):
        act(what, seconds=0.5 if what.startswith("hang") else None)
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


def test_call__leaves_nothing_to_the_next(act: ConfinedFunction) -> None:
    """Whatever hostile text does to its process affects neither the result nor the speed of the next call."""
    assert act("remember") == ["remember"]
    assert act("remember") == ["remember"]


@pytest.mark.parametrize("what", ["raise", "die", "hang", "flood", "answer in another's place"])
def test_call__kept_process_outlives_it(act: ConfinedFunction, what: str) -> None:
    act("echo")
    children = _children()
    with pytest.raises((CallFailed, CallBroken)):
        act(what, seconds=0.5)
    assert act("echo") == [1, "two", None]
    assert _children() == children
    kept = children.split()
    assert not Path(f"/proc/{kept[-1]}/task/{kept[-1]}/children").read_text()


def test_call__finds_what_was_warmed_up() -> None:
    warmed = ConfinedFunction(PLACE, seconds=30.0, warm=[("remember",)])
    assert [warmed("remember"), warmed("remember")] == [["remember", "remember"]] * 2
    warmed.close()


def test_call__that_cannot_be_warmed_up_says_why() -> None:
    with pytest.raises(CallFailed, match="ValueError: no"):
        ConfinedFunction(PLACE, seconds=30.0, warm=[("raise",)])("echo")


def _children() -> str:
    return Path("/proc/self/task", str(threading.get_native_id()), "children").read_text()
