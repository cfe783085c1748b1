"""A validator's logits for given tokens: the same in parts as at once, and as computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from roles.inference.engine import Prefill
from roles.inference.sampling import SamplingSettings, draw
from roles.toploc.readings import Readings, Sampled, read_tokens

VOCABULARY = 300
GENERATOR = torch.Generator().manual_seed(0)
HEAD = torch.randn(16, VOCABULARY, generator=GENERATOR)
STATES = torch.randn(40, 16, generator=GENERATOR)
SETTINGS = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, max_tokens=40)


def head(states: torch.Tensor) -> torch.Tensor:
    return states @ HEAD


def prefills(*lengths: int) -> list[Prefill]:
    return [Prefill(part, head) for part in torch.split(STATES, list(lengths))]


def sampled(*lengths: int, settings: SamplingSettings = SETTINGS) -> list[Sampled]:
    """What seeded sampling gives, with one seed a completion."""
    parts = []
    for number, prefill in enumerate(prefills(*lengths)):
        count = len(prefill.states)
        seeds, positions = torch.full((count,), number + 5), torch.arange(count)
        tokens = draw(prefill.logits, seeds, positions, settings).tokens if count else torch.zeros(0, dtype=torch.int64)
        parts.append(Sampled(tokens.tolist(), seeds.tolist(), positions.tolist()))
    return parts


def test_read_tokens__honest_and_empty_completions() -> None:
    found = read_tokens(prefills(30, 0, 10), sampled(30, 0, 10), SETTINGS, vocabulary=VOCABULARY)
    assert [len(item.margins) for item in found] == [30, 0, 10]
    assert max(float(item.margins.max(initial=0)) for item in found) == 0
    assert read_tokens([], [], SETTINGS, vocabulary=VOCABULARY) == []


def test_read_tokens__hand_computed() -> None:
    (found,) = read_tokens(prefills(40), sampled(40), SETTINGS, vocabulary=VOCABULARY)
    (said,) = sampled(40)
    probabilities = ((STATES @ HEAD).double() / 0.7).softmax(-1).numpy()
    expected = np.log(probabilities[np.arange(40), list(said.tokens)])
    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    assert found.unlikely == pytest.approx(np.where(probabilities < 0.1, probabilities, 0).sum(-1), abs=1e-4)


def test_read_tokens__in_parts_as_at_once() -> None:
    """However few logits are held at a time."""
    whole = read_tokens(prefills(33, 7), sampled(33, 7), SETTINGS, vocabulary=VOCABULARY)
    sizes: list[int] = []

    def counting(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return head(states)

    counted = [Prefill(item.states, counting) for item in prefills(33, 7)]
    parts = read_tokens(counted, sampled(33, 7), SETTINGS, vocabulary=VOCABULARY, most=4 * VOCABULARY)
    assert sizes == [4] * 10
    for one, other in zip(whole, parts, strict=True):
        assert_equal(one, other)


def assert_equal(one: Readings, other: Readings) -> None:
    for name in ("margins", "logprobs", "unlikely"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-5)
