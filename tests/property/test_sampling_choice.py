"""Seeded sampling: the choice is in the support, its margin is 0, and no other token's is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from roles.inference.sampling import SamplingSettings, choose, gumbel_noise, support
from roles.toploc.sampling_check import margins

LOGITS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 30)),
    elements=st.floats(-50, 50, width=32),
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
def test_choose__margin_is_zero_for_the_choice_only(logits: np.ndarray, sampling: SamplingSettings, seed: int) -> None:
    noise = gumbel_noise(seed, np.arange(len(logits)), logits.shape[1])
    tokens = choose(logits, noise, sampling)
    assert margins(logits, tokens.tolist(), seed, sampling).max() == 0
    assert (margins(logits, ((tokens + 1) % logits.shape[1]).tolist(), seed, sampling) >= 0).all()


@given(LOGITS, st.integers(1, 40), st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_support__holds_the_likeliest_and_no_more_than_top_k(logits: np.ndarray, top_k: int, top_p: float) -> None:
    mask = support(logits, top_k, top_p)
    assert np.take_along_axis(mask, logits.argmax(-1)[:, None], -1).all()
    assert mask.sum(-1).max() <= top_k
    inside, outside = np.where(mask, logits, np.inf).min(-1), np.where(mask, -np.inf, logits).max(-1)
    assert (inside >= outside).all()


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_gumbel_noise__finite_and_a_function_of_its_arguments(seed: int, position: int, vocabulary: int) -> None:
    noise = gumbel_noise(seed, position, vocabulary)
    assert np.isfinite(noise).all()
    assert (noise == gumbel_noise([0, seed], position, 60)[1, :vocabulary]).all()
