"""The sampling check: margins of honest and dishonest tokens, endings, and the two-hump test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from roles.inference.noise import Stream, gumbel_noise
from roles.inference.sampling import SamplingSettings, draw
from roles.toploc.sampling_check import (
    SamplingThresholds,
    find_termination_fault,
    is_two_humped,
    judge_sampling,
    summarise_margins,
)
from roles.toploc.verify import Judgement
from tests.unit.roles.toploc.proof_builders import margins

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=400)
EOS = 9
HONEST = SamplingThresholds(mean_clipped=0.002, largest=0.02)
FRAUD = SamplingThresholds(mean_clipped=0.1, largest=2.0)
Logits = npt.NDArray[np.float32]


def make_logits(tokens: int = 400, scale: float = 2.0, seed: int = 0) -> Logits:
    return (scale * np.random.default_rng(seed).standard_normal((tokens, 20))).astype(np.float32)


def sample(logits: Logits, seed: int = 7, settings: SamplingSettings = SETTINGS) -> list[int]:
    positions = torch.arange(len(logits))
    tokens: list[int] = draw(
        torch.from_numpy(logits), torch.full_like(positions, seed), positions, settings
    ).tokens.tolist()
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 0.9)])
def test_margins__honest_is_zero(temperature: float, top_k: int, top_p: float) -> None:
    settings = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=400)
    logits = make_logits()
    assert margins(logits, sample(logits, settings=settings), 7, settings).max() == 0


def test_margins__hand_computed() -> None:
    logits = make_logits(1)
    noise = gumbel_noise(torch.tensor([7]), torch.tensor([0]), 20, stream=Stream.TOKENS)[0]
    scores = logits[0] / np.float32(0.5) + noise.numpy()
    expected = np.sort(scores)[-1] - scores[3]
    assert margins(logits, [3], 7, replace(SETTINGS, temperature=0.5))[0] == pytest.approx(float(expected))


def test_margins__off_the_support_counts_the_way_back_to_it() -> None:
    logits = np.log(np.array([[0.6, 0.3, 0.1]], dtype=np.float32))
    (inside,), (outside,) = (margins(logits, [2], 7, replace(SETTINGS, top_k=k)) for k in (3, 2))
    assert outside == pytest.approx(inside + np.log(3))


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(lambda z: sample(z, seed=8), id="other_seed"),
        pytest.param(lambda z: sample(z, settings=replace(SETTINGS, temperature=0.0)), id="greedy"),
        pytest.param(lambda z: sample(z, settings=replace(SETTINGS, temperature=0.5)), id="other_temperature"),
        pytest.param(lambda z: sample(make_logits(seed=1)), id="other_model__top_24"),
    ],
)
def test_judge_sampling__dishonest_is_fraud(tokens: object) -> None:
    logits = make_logits()
    assert callable(tokens)
    statistics = summarise_margins(margins(logits, tokens(logits), 7, SETTINGS))
    assert judge_sampling([statistics], honest=HONEST, fraud=FRAUD) is Judgement.FRAUD
    assert statistics.exact_share < 0.9


def test_judge_sampling__one_altered_token_is_caught() -> None:
    logits = make_logits()
    tokens = sample(logits)
    tokens[-2] = int(logits[-2].argmin())
    statistics = summarise_margins(margins(logits, tokens, 7, SETTINGS))
    assert statistics.mean_clipped < FRAUD.mean_clipped
    assert judge_sampling([statistics], honest=HONEST, fraud=FRAUD) is Judgement.FRAUD


def test_judge_sampling__slightly_other_logits_are_doubtful_not_fraud() -> None:
    logits = make_logits()
    tokens = sample(logits + 0.05 * make_logits(seed=1))
    statistics = summarise_margins(margins(logits, tokens, 7, SETTINGS))
    assert judge_sampling([statistics], honest=HONEST, fraud=FRAUD) is Judgement.DOUBTFUL


def test_summarise_margins__hand_computed_and_empty() -> None:
    statistics = summarise_margins(np.array([0.0, 1.0, 0.0, np.inf]))
    assert (statistics.tokens, statistics.exact_share, statistics.mean_clipped) == (4, 0.5, 1.5)
    assert statistics.largest == np.inf
    assert summarise_margins(np.empty(0)).exact_share == 1.0


@pytest.mark.parametrize(
    ("output", "finish", "fault"),
    [
        ([1, EOS], "eos", None),
        ([EOS], "eos", None),
        ([1, 2, 3], "length", None),
        ([1, 2, EOS], "eos", None),
        ([], "length", "empty"),
        ([1, 2, 3, 4], "length", "longer"),
        ([EOS, 1, 2], "length", "after the end"),
        ([EOS, EOS], "eos", "after the end"),
        ([1, 2], "eos", "no end token"),
        ([1, EOS], "length", "ran to length"),
        ([1, 2], "length", "stopped before"),
    ],
)
def test_find_termination_fault__each_case(output: list[int], finish: str, fault: str | None) -> None:
    found = find_termination_fault(output, finish, eos=EOS, max_tokens=3)
    assert found is None if fault is None else fault in str(found)


def sharp_logits(tokens: int = 200) -> Logits:
    """A confident policy: one token in twenty is open, the rest have probability near 1."""
    logits = make_logits(tokens, scale=0.1)
    logits[np.arange(tokens), np.arange(tokens) % 20] += np.where(np.arange(tokens) % 20 == 0, 0, 9).astype(np.float32)
    return logits


def humped(logits: Logits, tokens: list[int]) -> bool:
    probabilities = np.exp(logits - logits.max(-1, keepdims=True).astype(np.float64))
    probabilities /= probabilities.sum(-1, keepdims=True)
    unlikely = np.where(probabilities < 0.1, probabilities, 0).sum(-1)
    return is_two_humped(np.log(probabilities[np.arange(len(tokens)), tokens]), unlikely)


def test_is_two_humped__honest_is_not() -> None:
    logits = sharp_logits()
    assert not humped(logits, sample(logits))


def test_is_two_humped__flat_policy_is_not() -> None:
    logits = make_logits(scale=0.1)
    assert not humped(logits, sample(logits))


def test_is_two_humped__half_sure_half_flat_policy_is_not() -> None:
    logits = make_logits(200, scale=0.1)
    logits[::2, 3] += 12
    assert not humped(logits, sample(logits))


def test_is_two_humped__another_model_decoded__top_24() -> None:
    logits = sharp_logits()
    tokens = sample(logits)
    tokens[::3] = [(token + 1) % 20 for token in tokens[::3]]
    assert humped(logits, tokens)
    assert not humped(logits[:29], tokens[:29])
