"""The joined detector: honest submissions are refused at the requested low rate whatever their length;
amplified noise is detected."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dht.encoding import decode, encode
from roles.messages import JoinedStatistics, Statistics
from roles.spec import CheckSpec, JoinedSpec
from roles.toploc.joined import NAMES, Fit, History, fit, history_limit, score
from roles.toploc.joined.fitting import _most
from roles.toploc.joined.pinned import calibration_of, pin
from roles.toploc.joined.score import tail
from roles.toploc.observation import Observation
from tests.unit.roles.toploc.joined_builders import make_many, make_observation


@functools.cache
def fitted() -> Fit:
    """Three environments, of which the first deviates most; short completions among the long."""
    lengths = (128, 128, 128, 40, 20, 10)
    return fit(
        {
            name: [
                each for seed, tokens in enumerate(lengths) for each in make_many(seed, 12, times=times, tokens=tokens)
            ]
            for name, times in (("first", 1.0), ("second", 0.9), ("third", 0.2))
        }
    )


def share_below(at: float, observations: Sequence[Observation]) -> float:
    return float(np.mean([score(each, fitted().calibration).p < at for each in observations]))


def test_fit__names_the_environment_that_deviates_most__top_16() -> None:
    assert fitted().worst[1] == "first"
    assert fitted().submissions == 216
    assert fitted().shares[-1] == 0


@pytest.mark.parametrize("tokens", [1, 10, 40, 128])
def test_score__honest_is_refused_no_oftener_than_asked__top_17(tokens: int) -> None:
    assert share_below(0.01, make_many(77, 300, tokens=tokens)) <= 0.02


@pytest.mark.parametrize("seed", [5, 6])
def test_score__noise_doubled_is_seen_in_one_submission__top_17(seed: int) -> None:
    assert share_below(0.001, make_many(seed, 100, times=2.0)) == 1.0


def test_score__one_spoiled_completion_is_named() -> None:
    found = score(make_observation(np.random.default_rng(3), spoiled=5), fitted().calibration)
    assert found.p < 0.001
    assert found.completion == 5
    assert "of completion 5" in str(found)


def test_score__one_freak_chunk_of_honest_work_convicts_nobody() -> None:
    honest = make_observation(np.random.default_rng(3))
    first, *others = honest.chunks
    freak = replace(honest, chunks=((replace(first[0], mantissa_mean=20.0), *first[1:]), *others))
    assert score(freak, fitted().calibration).p > 0.01


def test_score__states_that_have_nothing_in_common() -> None:
    plain = make_many(1, 1)[0].to_plain()
    plain["chunks"] = [[(128, 2.0**64, 2.0**64) for _ in parts] for parts in plain["chunks"]]
    assert score(Observation.from_plain(plain), fitted().calibration).p < 1e-100


def test_score__chunks_of_an_unknown_class_are_not_judged() -> None:
    known = fit({"long": make_many(1, 20)}).calibration
    assert known.mantissas.levels[:3] == (0.0, 0.0, 0.0)
    short = make_observation(np.random.default_rng(1), times=50.0, tokens=5, missed=0.0)
    assert score(short, known).p == 1.0


def test_score__no_tokens() -> None:
    found = score(Observation(((),), (np.empty(0),)), fitted().calibration)
    assert (found.p, set(found.evidence)) == (1.0, {0.0})


def test_fit__engines_that_agree_exactly__one_small_miss_is_no_proof_and_many_are() -> None:
    """The shipped policy in float32: no margin at all in all the honest submissions seen."""
    calibration = fit({"cpu": make_many(1, 200, missed=0.0)}).calibration
    one, many = (make_many(2, 1, missed=0.0)[0] for _ in range(2))
    one.margins[0][0] = 0.01
    for part in many.margins:
        part[:5] = 0.05
    assert score(one, calibration).p > 0.01
    assert score(many, calibration).p < 1e-6


def test_fit__most_submissions_above_the_mean_do_not_widen_it_without_end() -> None:
    honest = [*make_many(1, 160, times=1.1), *make_many(2, 40, times=0.6)]
    found = fit({"only": honest})
    assert max(found.inflation) < 1.5
    assert all(score(each, found.calibration).p < 0.001 for each in make_many(3, 20, times=2.5))


def test_fit__tails_heavier_than_the_spreads_give_widen_it() -> None:
    """One in 20 of honest submissions deviates half as much again."""
    honest = make_many(1, 95) + make_many(2, 5, times=1.5)
    found = fit({"one": honest})
    assert max(found.inflation) > 1.0
    assert np.mean([score(each, found.calibration).p < 0.01 for each in honest]) <= 0.03


def test_fit__one_submission_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least two"):
        fit({"one": make_many(1, 1)})


def test_history__honest_nodes_hardly_ever_reach_the_limit() -> None:
    """The sum over the worst honest environment's submissions: at most one node in 20 in 100 submissions."""
    limit = history_limit(submissions=100, one_in=20)
    alarms = 0
    for seed in range(40):
        history = History()
        for each in make_many(1000 + seed, 30):
            history = history.after(score(each, fitted().calibration).evidence, limit=limit)
            alarms += history.total >= limit
    assert alarms == 0


def test_history__several_sums_are_held_to_more_than_one_is() -> None:
    """Nine chances of a false alarm instead of one: each must be nine times as rare."""
    assert History((10.0, *[0.0] * 8)).total == pytest.approx(10.0 - math.log(9))
    assert History((10.0,)).total == 10.0


def test_history__what_no_submission_shows_adds_up() -> None:
    limit, history = history_limit(submissions=3000, one_in=1000), History()
    for each in make_many(9, 30, times=1.25):
        history = history.after(score(each, fitted().calibration).evidence, limit=limit)
    assert history.total >= limit


def test_history__honest_work_leads_back() -> None:
    limit = history_limit(submissions=3000, one_in=1000)
    history = History((1e6,) * 9).after((0.0,) * 9, limit=limit)
    for each in make_many(4, 12):
        history = history.after(score(each, fitted().calibration).evidence, limit=limit)
    assert history.total < limit


def test_history_limit__worked_value() -> None:
    assert history_limit(submissions=3000, one_in=1000) == pytest.approx(14.914, abs=1e-3)


def test_pin__judges_alike() -> None:
    calibration = fitted().calibration
    tables = json.loads(json.dumps(pin(calibration)))
    spec = JoinedSpec.model_validate_json(json.dumps(tables))
    each = make_many(8, 1, times=1.6)[0]
    assert score(each, calibration_of(spec)).p == pytest.approx(score(each, calibration).p, rel=0.01)


def test_observation__comes_back_from_its_file() -> None:
    observation = make_many(1, 1, tokens=70)[0]
    observation.margins[0][3] = np.inf
    again = Observation.from_plain(json.loads(json.dumps(observation.to_plain())))
    assert again.chunks == observation.chunks
    for part, other in zip(again.margins, observation.margins, strict=True):
        np.testing.assert_allclose(part, other, atol=1e-6)


def test_observation__chunks_must_cover_the_tokens() -> None:
    with pytest.raises(ValueError, match="each of its chunks"):
        Observation(((),), (np.zeros(3),))


def test_statistics__anybody_computes_the_rarity_again_from_sums_and_lengths() -> None:
    calibration, observation = fitted().calibration, make_many(12, 1, times=1.6)[0]
    found = score(observation, calibration)
    k = NAMES.index(found.component)
    counts = np.array([len(part) for part in (observation.margins if k == 2 else observation.chunks)], dtype=np.float64)
    again = tail(calibration.components[k], found.ratios[k] * counts.sum(), counts)
    assert found.completion is None
    assert min(1.0, 6 * again) == pytest.approx(found.p)


def test_statistics__runs_without_the_test_keep_their_bytes() -> None:
    plain = Statistics(exponent_mismatches=0, mantissa_mean=1, mantissa_median=2, margin_mean=3, tokens_exact=1000)
    assert b"joined" not in encode(plain)
    assert b"joined" not in encode(CheckSpec())
    joined = plain.model_copy(
        update={"joined": JoinedStatistics(rarity=3000, exponents=1000, mantissas=2000, margins=0)}
    )
    assert decode(Statistics, encode(joined)) == joined


@pytest.mark.parametrize(("n", "p", "most"), [(40, 0.1, 8), (6000, 0.1, 646), (8000, 0.1, 853), (50_000, 0.001, 64)])
def test_most__is_the_binomials_quantile_however_many_submissions(n: int, p: float, most: int) -> None:
    """scipy.stats.binom.ppf(0.975, n, p). At 0.9**8000 a floating-point number is 0."""
    assert _most(n, p) == most
