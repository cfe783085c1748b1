"""The arithmetic of `benchmarks.attacks`, and its store, which resumes after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.attacks.detecting import Rate, detect, fit_honest, judge_honest
from benchmarks.attacks.grinding import grind
from benchmarks.attacks.intervals import exact_interval, tail_rate
from benchmarks.attacks.store import Record, Store
from node.errors import ConfigError
from node.testnet.adversaries.weights import eight_bit_float, fewer_layers, low_rank, quantised, write_altered
from roles.inference.transformers_engine import TransformersEngine
from roles.toploc.observation import Observation
from roles.toploc.verify import ProofStatistics
from tests.builders import POLICY

TOKENS = 64


def make_record(name: str, group: int, *, level: float = 1.0) -> Record:
    """Four completions of two chunks; `level` times the honest deviation."""
    draw = np.random.default_rng(group)
    chunks = tuple(
        tuple(
            ProofStatistics(int(draw.poisson(2 * level)), float(draw.gamma(20, level / 20)), 1.0)
            for _ in range(TOKENS // 32)
        )
        for _ in range(4)
    )
    margins = tuple(np.where(draw.random(TOKENS) < 0.03, draw.exponential(0.05 * level, TOKENS), 0.0) for _ in range(4))
    return Record(name, group, Observation(chunks, margins), 0.0, (1.0, 0.5))


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 128, 0.0, 0.0284), (9, 9, 0.6637, 1.0), (30, 30, 0.8843, 1.0), (5, 10, 0.1871, 0.8129), (0, 0, 0.0, 1.0)],
)
def test_exact_interval__as_published(hits: int, trials: int, low: float, high: float) -> None:
    assert exact_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_least__lower_bound_of_thirty_of_thirty() -> None:
    assert Rate(30, 30).least == pytest.approx(0.05 ** (1 / 30), abs=1e-4)


def test_tail_rate__of_an_exponential_is_that_of_the_exponential() -> None:
    values = [float(value) for value in np.random.default_rng(3).exponential(size=4000)]
    assert tail_rate(values, 6.9) == pytest.approx(0.001, rel=0.5)
    assert tail_rate(values[:5], 6.9) == 1.0


def test_store__goes_on_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    store = Store(tmp_path, "tag")
    store.add([make_record("int8", 0), make_record("int8", 1)])
    with store.path.open("ab") as file:
        file.write(b'{"name":"int8","group":2,"obs')
    again = Store(tmp_path, "tag")
    assert [record.group for record in again.groups("int8")] == [0, 1]
    with again.writing():
        again.add([make_record("int8", 2)])
    held = Store(tmp_path, "tag").groups("int8")
    assert [record.group for record in held] == [0, 1, 2]
    assert held[2].observation.to_plain() == make_record("int8", 2).observation.to_plain()


def test_store__one_process_at_a_time_adds(tmp_path: Path) -> None:
    store = Store(tmp_path, "tag")
    with store.writing(), pytest.raises(ConfigError, match="another process"), Store(tmp_path, "tag").writing():
        raise AssertionError


def test_detect__what_deviates_eight_times_as_much_and_not_what_is_honest() -> None:
    honest = {"a": [make_record("a", number) for number in range(40)]}
    fitted = fit_honest(honest)
    assert judge_honest(honest).submissions == Rate(0, 40)
    found = detect("x", [make_record("x", 100 + number, level=8.0) for number in range(8)], fitted.calibration)
    assert found.caught == Rate(8, 8)
    assert found.tokens is not None
    same = detect("y", [make_record("y", 200 + number) for number in range(8)], fitted.calibration)
    assert same.caught.hits == 0


@pytest.mark.parametrize("alteration", [quantised(8), quantised(4, group=32), eight_bit_float(), low_rank(0.01)])
def test_write_altered__other_weights_of_the_same_shape(alteration: object, tmp_path: Path) -> None:
    engine = TransformersEngine()
    engine.load(POLICY)
    before = engine.prefill([((2, 3), (4, 5))])[0].states
    engine.load(write_altered(POLICY, tmp_path / "altered", alteration))  # type: ignore[arg-type]
    after = engine.prefill([((2, 3), (4, 5))])[0].states
    assert not torch.equal(before, after)
    assert (before.float() - after.float()).abs().mean() < 0.5 * before.float().abs().mean()


def test_write_altered__fewer_layers_is_a_model_that_loads(tmp_path: Path) -> None:
    engine = TransformersEngine()
    engine.load(write_altered(POLICY, tmp_path / "short", fewer_layers(0.5)))
    assert engine.prefill([((2,), (3,))])


def test_grind__the_best_id_by_a_guess_is_as_good_as_any() -> None:
    found = grind(ids=300)
    assert found.best_by_guess > 2 * found.easy
    assert found.best_in_truth < found.best_by_guess
