"""Seeded sampling: the choice is in the support, its margin is 0, and no other token's is."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from roles.inference.noise import Stream, gumbel_noise
from roles.inference.sampling import SamplingSettings, draw
from roles.inference.support import support
from tests.unit.roles.toploc.proof_builders import margins

FINITE = st.floats(-50, 50, width=32)
LOGITS = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=FINITE) | arrays.arrays(
    np.float32, st.tuples(st.integers(1, 2), st.integers(250, 600)), elements=FINITE, fill=FINITE
)
SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.1]),
    top_k=st.integers(0, 40),
    max_tokens=st.just(8),
)


@given(LOGITS, SETTINGS, st.integers(0, 2**63 - 1))
@settings(max_examples=200, deadline=None)
def test_draw__margin_is_zero_for_the_choice_only(logits: np.ndarray, sampling: SamplingSettings, seed: int) -> None:
    positions = torch.arange(len(logits))
    tokens = draw(torch.from_numpy(logits), torch.full_like(positions, seed), positions, sampling).tokens
    assert margins(logits, tokens.tolist(), seed, sampling).max() == 0
    assert (margins(logits, ((tokens + 1) % logits.shape[1]).tolist(), seed, sampling) >= 0).all()


@given(LOGITS, st.integers(1, 40), st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_support__holds_the_likeliest_and_no_more_than_top_k(logits: np.ndarray, top_k: int, top_p: float) -> None:
    mask = support(torch.from_numpy(logits), top_k, top_p).numpy()
    assert np.take_along_axis(mask, logits.argmax(-1)[:, None], -1).all()
    assert mask.sum(-1).max() <= top_k
    inside, outside = np.where(mask, logits, np.inf).min(-1), np.where(mask, -np.inf, logits).max(-1)
    assert (inside >= outside).all()


@given(LOGITS, st.integers(1, 40), st.floats(0.01, 1.0))
@settings(max_examples=100, deadline=None)
def test_support__as_sorting_gives_it(logits: np.ndarray, top_k: int, top_p: float) -> None:
    for row in logits:
        ranked = np.argsort(-row, kind="stable")[:top_k]
        weights = np.exp(row[ranked].astype(np.float64) - row.max())
        share = (np.cumsum(weights) - weights) / weights.sum()
        assume(np.abs(share - top_p).min() > 1e-9)
        expected = ranked[: max(1, int((share < top_p).sum()))]
        assert support(torch.from_numpy(row[None]), top_k, top_p)[0].nonzero()[:, 0].tolist() == sorted(expected)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(1, 50), st.sampled_from(Stream))
@settings(max_examples=200, deadline=None)
def test_gumbel_noise__finite_and_a_function_of_its_arguments(
    seed: int, position: int, items: int, stream: Stream
) -> None:
    alone = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), items, stream=stream)
    together = gumbel_noise(torch.tensor([0, seed]), torch.tensor([5, position]), 60, stream=stream)
    assert bool(alone.isfinite().all())
    assert torch.equal(alone[0], together[1, :items])
