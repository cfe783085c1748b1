"""Length targets: the prompt, the value of an answer, and that a worker cannot choose its own target."""

from __future__ import annotations

from collections import Counter

import pytest

from roles.assignment import assigned_groups
from roles.spec import LengthSpec
from roles.tasks import load_task
from roles.tasks.arithmetic import Arithmetic, compute_solution
from roles.tasks.length import LengthTask, at_most, cut_off, exact

ALPHA = 0.0003


@pytest.mark.parametrize(
    ("score", "length", "worth"),
    [(1.0, 1000, 1.0), (1.0, 0, 0.7), (1.0, 2000, 0.7), (0.0, 1000, 0.0), (0.0, 3000, -0.6)],
)
def test_exact__is_the_papers_formula(score: float, length: int, worth: float) -> None:
    """INTELLECT-2, section 3.1.2: r - alpha |target - length|."""
    assert exact(score, target=1000, length=length, alpha=ALPHA) == pytest.approx(worth)


@pytest.mark.parametrize(("length", "worth"), [(4000, 0.5), (2500, 0.95), (0, 1.0), (5000, 0.2), (9000, 0.0)])
def test_at_most__longer_is_worth_less(length: int, worth: float) -> None:
    assert at_most(1.0, target=4000, length=length, alpha=ALPHA) == pytest.approx(worth)
    assert at_most(0.0, target=4000, length=length, alpha=ALPHA) == 0.0


@pytest.mark.parametrize(("length", "worth"), [(1, 1.0), (1000, 1.0), (1001, 0.0)])
def test_cut_off__nothing_past_the_target(length: int, worth: float) -> None:
    assert cut_off(1.0, target=1000, length=length, alpha=ALPHA) == worth


def make_task(**rule: object) -> LengthTask:
    return LengthTask(load_task("arithmetic", {}), LengthSpec.model_validate({"targets": (30, 60), **rule}))


def test_prompt__tells_the_target() -> None:
    task = make_task(suffix=" [{target} tokens]")
    assert task.prompt(0, 30) == task.task.prompt(0) + " [30 tokens]"


def test_reward__counts_the_length() -> None:
    task = make_task(alpha="0.01")
    assert isinstance(task.task, Arithmetic)
    right = compute_solution(task.task.terms(0))
    assert task.reward(0, 30, right, length=40) == pytest.approx(0.9)


def test_length_task__without_a_rule_is_the_task() -> None:
    task = LengthTask(load_task("arithmetic", {}))
    assert (task.targets, task.prompt(0, None)) == ((), task.task.prompt(0))
    assert task.reward(0, None, "no", length=10**6) == 0.0


def test_assigned_groups__targets_are_drawn_from_the_seed() -> None:
    """The reference draws them from an unseeded generator, so nobody can check them."""
    groups = assigned_groups("ab" * 32, problems=9, groups=400, group_size=1, targets=(30, 60))
    assert groups == assigned_groups("ab" * 32, problems=9, groups=400, group_size=1, targets=(30, 60))
    assert min(Counter(group.target for group in groups).values()) > 150


def test_assigned_groups__targets_change_nothing_else() -> None:
    with_targets = assigned_groups("ab" * 32, problems=9, groups=2, group_size=3, targets=(30, 60))
    without = assigned_groups("ab" * 32, problems=9, groups=2, group_size=3)
    assert [(g.problem, g.seeds) for g in with_targets] == [(g.problem, g.seeds) for g in without]


@pytest.mark.parametrize("rule", [{"targets": ()}, {"targets": (0,)}, {"suffix": "no place for it"}, {"mode": "soft"}])
def test_length_spec__refuse(rule: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"targets|suffix|mode"):
        make_task(**rule)
