"""The alarms that a run's metrics raise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roles.rl.alarms import AGAIN, WINDOW, Alarms
from roles.rl.batch import select_rows
from roles.rl.metrics import StepMetrics, Totals
from roles.rl.ranks import join_ranks
from tests.unit.roles.rl.groups import make_group

QUIET = replace(
    Totals().compute_metrics(
        [make_group()],
        select_rows([make_group()]),
        ranks=join_ranks(device="cpu"),
        step=1,
        learning_rate=1e-4,
        seconds=1.0,
    ),
    entropy=1.0,
)


def raised(*changes: dict[str, float], first: int = 1) -> list[tuple[int, str]]:
    """Step and event of every alarm over a series."""
    alarms, found = Alarms(), []
    for step, change in enumerate(changes, first):
        metrics: StepMetrics = replace(QUIET, step=step, **change)  # type: ignore[arg-type]
        found += [(step, alarm.event) for alarm in alarms.look(metrics)]
    return found


def test_alarms__a_run_that_goes_well_raises_none() -> None:
    falling = [{"entropy": 2.0 - 0.1 * step, "clipped_low": 0.01} for step in range(15)]
    assert raised(*falling) == []


def test_alarms__trn_02_entropy_that_rises_again() -> None:
    series = [{"entropy": 0.4}] * WINDOW + [{"entropy": 0.8}] * WINDOW
    assert raised(*series) == [(8, "entropy.rebounded")]  # three of the five: 0.64 > 0.6


def test_alarms__clipping_that_grows() -> None:
    series = [{"clipped_high": 0.02}] * WINDOW + [{"clipped_low": 0.1, "clipped_delta": 0.02}] * WINDOW
    assert raised(*series) == [(8, "clipping.grown")]  # three of the five: 0.08 > 3 * 0.02


def test_alarms__trn_10_equal_weights_that_disagree_are_said_again_after_a_while() -> None:
    assert raised(*[{"mismatch": 0.1}] * (AGAIN + 2)) == [
        (1, "logprobs.mismatched"),
        (1 + AGAIN, "logprobs.mismatched"),
    ]


def test_alarms__trn_10_workers_that_report_other_log_probabilities() -> None:
    assert raised({"reported_mismatch": 0.01}, {"reported_mismatch": 0.03}) == [(2, "logprobs.mismatched")]


def test_alarms__a_step_without_tokens_tells_nothing() -> None:
    assert raised(*[{"mismatch": 0.1, "tokens": 0}] * 3) == []


def test_metrics__of_groups_without_an_update() -> None:
    assert (QUIET.ratio_median, QUIET.effective_sample, QUIET.mismatch) == (1.0, 1.0, 0.0)
    assert QUIET.staleness == pytest.approx(0.0)
