"""Which finished runs `benchmarks.async_levels` takes for its own, and its list of levels."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.async_levels import NODES, Row, is_same, level_list, summarise


def test_level_list__numbers_with_commas() -> None:
    assert level_list("0,2,4") == (0, 2, 4)
    for text in ("", "0,", "a", "-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            level_list(text)


def test_is_same__as_long_and_in_as_large_a_network() -> None:
    options = argparse.Namespace(steps=6, **NODES)
    assert is_same({"steps": 6}, options)  # as rows were written before they said
    assert is_same({"steps": 6, **NODES}, options)
    assert not is_same({"steps": 4, **NODES}, options)
    assert not is_same({"steps": 6, **NODES, "workers": 1}, options)


def _row(level: int, seed: int, reward: float) -> Row:
    seconds = {"broadcast_seconds": 1.0, "verify_seconds": 0.5, "wait_seconds": 2.0 if level == 0 else 0.5}
    return {"level": level, "seed": seed, "steps": 4, "seconds": 9.0, "final_reward": reward, **seconds}


def test_summarise__a_single_seed_is_no_verdict() -> None:
    base, later = summarise([_row(0, 1, 0.6), _row(2, 1, 0.2)])
    assert "is_within_noise" not in base
    assert "is_within_noise" not in later
    assert (base["hidden_seconds"], later["hidden_seconds"]) == (0.0, 1.0)


def test_summarise__a_level_behind_more_than_the_noise_is_called_so() -> None:
    rows = [_row(0, 1, 0.60), _row(0, 2, 0.62), _row(2, 1, 0.2), _row(2, 2, 0.22), _row(4, 1, 0.5), _row(4, 2, 0.7)]
    verdicts = {row["level"]: row["is_within_noise"] for row in summarise(rows)}
    assert verdicts == {0: True, 2: False, 4: True}
