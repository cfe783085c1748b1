"""Seeded sampling: noise that anyone can recompute, and the token that follows from it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from roles.inference.philox import philox4x32
from roles.inference.sampling import SamplingSettings, choose, gumbel_noise, support, token_logprobs


def settings(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> SamplingSettings:
    return SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=8)


def words(*values: int) -> tuple[npt.NDArray[np.uint64], ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123, kat_vectors, philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox4x32__published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    output = philox4x32(words(*counter), words(*key))  # type: ignore[arg-type]
    assert output[0].tolist() == list(expected)


def test_gumbel_noise__first_words_are_philox() -> None:
    seed, position = (0x299F31D0 << 32 | 0xA4093822) & (2**63 - 1), 5
    counter, key = words(1, position, 0, 0), words(seed & 0xFFFFFFFF, seed >> 32)
    uniform = (philox4x32(counter, key).astype(np.float64) + 0.5) / 2**32  # type: ignore[arg-type]
    expected = (-np.log(-np.log(uniform))).astype(np.float32)[0]
    assert gumbel_noise(seed, position, 8)[4:].tolist() == expected.tolist()


def test_gumbel_noise__independent_of_batch_and_vocabulary__top_06() -> None:
    alone = gumbel_noise(9, 3, 10)
    together = gumbel_noise([[1], [9]], [[2, 3]], 700_001)
    assert together.shape == (2, 2, 700_001)
    assert together[1, 1, :10].tolist() == alone.tolist()


def test_gumbel_noise__moments_of_a_standard_gumbel() -> None:
    noise = gumbel_noise(np.arange(64), 0, 4096).astype(np.float64)
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**63, 0), (0, -1), (0, 2**32)])
def test_gumbel_noise__refuse_out_of_range(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        gumbel_noise(seed, position, 4)


def test_choose__frequencies_are_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    tokens = choose(logits, gumbel_noise(np.arange(40_000), 0, 4), settings())
    assert np.allclose(np.bincount(tokens) / 40_000, [0.5, 0.3, 0.15, 0.05], atol=0.01)


def test_choose__temperature_scales_logits_not_noise() -> None:
    logits = np.log(np.array([0.8, 0.2], dtype=np.float32))
    tokens = choose(logits, gumbel_noise(np.arange(40_000), 0, 2), settings(temperature=0.5))
    assert abs((tokens == 1).mean() - 0.04 / 0.68) < 0.01


def test_choose__greedy_ignores_noise() -> None:
    logits = np.array([[1.0, 3.0, 2.0]], dtype=np.float32)
    assert choose(logits, gumbel_noise([0], 0, 3) * 100, settings(temperature=0.0)).tolist() == [1]


def test_choose__never_off_the_support() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    noise = gumbel_noise(np.arange(2000), 0, 4)
    assert set(choose(logits, noise, settings(top_k=2)).tolist()) == {0, 1}
    assert set(choose(logits, noise, settings(top_p=0.7)).tolist()) == {0, 1}
    assert set(choose(logits, noise, settings(top_p=0.81)).tolist()) == {0, 1, 2}


def test_support__ties_go_to_the_smaller_id() -> None:
    assert support(np.zeros(4, dtype=np.float32), 2, 1.0).tolist() == [True, True, False, False]
    assert support(np.zeros(4, dtype=np.float32), 0, 0.25).tolist() == [True, False, False, False]


def test_token_logprobs__hand_computed() -> None:
    logits = np.array([[0.0, np.log(3.0)]], dtype=np.float32)
    assert np.exp(token_logprobs(logits, [1], 1.0)[0]) == pytest.approx(0.75)
    assert np.exp(token_logprobs(logits, [1], 0.5)[0]) == pytest.approx(0.9)


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -1}])
def test_sampling_settings__refuse_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        SamplingSettings(**{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8, **bad})  # type: ignore[arg-type]
