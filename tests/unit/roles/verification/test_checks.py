"""Checks that need a clock or a broken policy supplied by the test."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from roles.inference.engine import Prefill
from roles.rollouts.schema import read_rollouts
from roles.rules import Reason, Reject, SoftReject
from roles.toploc.readings import Readings
from roles.verification import Case, DuplicateIndex
from roles.verification.audit_checks import _count_copied, check_endings, check_proofs
from roles.verification.case import Means
from roles.verification.checks import check_bounds, check_rewards
from roles.verification.duplicates import sketch_of
from tests.builders import WORKERS, World, make_rollouts, make_world


def make_case(world: World, **changes: object) -> Case:
    """An honest submission under judgement."""
    means = Means(
        spec=world.spec,
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


@pytest.mark.parametrize(("claimed", "refusal"), [(0.0, SoftReject), (0.5, Reject)])
def test_check_rewards__nothing_claimed_may_be_a_scorer_that_ran_out_of_time(
    claimed: float, refusal: type[Exception]
) -> None:
    right = SimpleNamespace(is_repeatable=True, score=lambda *_: 1.0)
    case = make_case(make_world(), task=right)
    rows = tuple(replace(row, reward=claimed) for row in case.file.rows)
    case.__dict__["file"] = replace(case.file, rows=rows)
    with pytest.raises(refusal) as caught:
        check_rewards(case)
    assert caught.value.reason is Reason.WRONG_REWARD  # type: ignore[attr-defined]


@pytest.mark.parametrize(("logprob", "is_refused"), [(0.0005, False), (0.01, True)])
def test_check_bounds__a_log_probability_above_0_by_more_than_rounding(logprob: float, is_refused: bool) -> None:
    case = make_case(make_world())
    first, *rest = case.file.rows
    spoiled = replace(first, output_logprobs=(logprob,) * len(first.output))
    case.__dict__["file"] = replace(case.file, rows=(spoiled, *rest))
    with pytest.raises(Reject, match="log-probability of row 0") if is_refused else nullcontext():
        check_bounds(case)


@pytest.mark.parametrize(("margin", "is_refused"), [(0.9, False), (1.1, True)])
def test_check_endings__an_end_token_that_noise_does_not_explain(margin: float, is_refused: bool) -> None:
    case = make_case(make_world())
    case.__dict__["file"] = replace(case.file, rows=tuple(replace(row, finish="eos") for row in case.file.rows))
    case.__dict__["readings"] = [Readings(part := np.array([9.0, margin]), -part, part) for _ in case.file.rows]
    with pytest.raises(SoftReject, match="seeded sampling does not give") if is_refused else nullcontext():
        check_endings(case)


@pytest.mark.parametrize(("length", "copied"), [(400, 400), (200, 0)])
def test_count_copied__long_copy_of_likely_tokens_is_judged_as_a_whole(length: int, copied: int) -> None:
    """The runs compared cover 96 tokens at most, which may be likely ones."""
    case = make_case(make_world())
    sketch = sketch_of(range(length))
    likely = np.full(length, 0.15)
    case.__dict__["sketches"] = [sketch]
    case.__dict__["readings"] = [Readings(margins=likely, logprobs=-likely, unlikely=likely)]
    assert _count_copied(case, 0, list(sketch.runs.values())) == copied
    assert _count_copied(case, 0, list(sketch.runs.values())[:-1]) == 0


def test_check_proofs__policy_without_finite_states_condemns_nobody() -> None:
    """That is the trainer's fault, not the worker's."""
    case = make_case(make_world())
    first, *rest = case.prefill
    broken = first.states.clone()
    broken[0, 0] = float("nan")
    case.__dict__["prefill"] = [Prefill(broken, first.head), *rest]
    with pytest.raises(SoftReject) as refusal:
        check_proofs(case)
    assert refusal.value.reason is Reason.PROOF_UNCERTAIN
