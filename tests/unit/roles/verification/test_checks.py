"""Checks that need a clock or a broken policy of the test's own."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from roles.inference.engine import Prefill
from roles.rollouts.schema import read_rollouts
from roles.rules import Reason, SoftReject
from roles.verification import Case, DuplicateIndex
from roles.verification.case import Means
from roles.verification.checks import check_proofs, check_rewards
from tests.builders import WORKERS, World, make_rollouts, make_world


def make_case(world: World, **changes: object) -> Case:
    """An honest submission under judgement."""
    means = Means(
        spec=world.spec,
        run=world.run,
        engine=world.engine,
        task=world.task,
        duplicates=DuplicateIndex(),
        read=read_rollouts,
    )
    made = make_rollouts(world)
    return Case(made.submission, world.seed(WORKERS[0]), made.blob, replace(means, **changes))  # type: ignore[arg-type]


def test_check_rewards__that_take_too_long_are_nobody_s_fault() -> None:
    clock = count(0, 4)  # seconds at each look
    with pytest.raises(SoftReject) as refusal:
        check_rewards(make_case(make_world(), monotonic=lambda: float(next(clock))))
    assert refusal.value.reason is Reason.SCORING_TIMEOUT
    assert "row 2 of 8" in refusal.value.detail


def test_check_proofs__policy_without_finite_states_condemns_nobody() -> None:
    """Its trainer's fault, not the worker's."""
    case = make_case(make_world())
    first, *rest = case.prefill
    broken = first.states.clone()
    broken[0, 0] = float("nan")
    case.__dict__["prefill"] = [Prefill(broken, first.head), *rest]
    with pytest.raises(SoftReject) as refusal:
        check_proofs(case)
    assert refusal.value.reason is Reason.PROOF_UNCERTAIN
