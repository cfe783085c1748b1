"""Seeded Gumbel-max sampling: which token follows from logits, a seed and a position, so that a validator can check it.

The noise of token `v` at position `i` under seed `s` is (design section 17; DiFR, arXiv 2511.20621):

    word = philox4x32-10(counter = (v // 4, i, 0, 0), key = (s mod 2^32, s // 2^32))[v % 4]
    u    = (word + 1/2) / 2^32                       in (0, 1), float64
    G    = -log(-log(u))                             standard Gumbel, float64, rounded once to float32

and the chosen token is `argmax over the support of (logits / T + G)`, which is a sample of `softmax(logits / T)`
restricted to the support. `position` counts output tokens: 0 is the first token after the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roles.inference.philox import philox4x32

SEED_BITS = 63
_BLOCK_ELEMENTS = 1 << 18  # elements of noise made at once: about 20 MB of temporaries

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are drawn. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 are off; part of the run spec."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError("temperature must be between 0 and 100")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError("top_p must be above 0 and at most 1")
        if self.top_k < 0 or self.max_tokens < 1:
            raise ValueError("top_k must not be negative and max_tokens must be at least 1")


def gumbel_noise(seeds: npt.ArrayLike, positions: npt.ArrayLike, vocabulary: int) -> Floats:
    """Standard Gumbel noise for every token of the vocabulary.

    `seeds` (0 <= s < 2^63) and `positions` (0 <= i < 2^32) broadcast against each other to some shape `S`.
    Returns float32 `[*S, vocabulary]`; temporaries are bounded whatever the vocabulary.
    """
    seed_array, position_array = np.broadcast_arrays(np.asarray(seeds), np.asarray(positions))
    _check_range(seed_array, SEED_BITS, "seed")
    _check_range(position_array, 32, "position")
    flat_seeds = seed_array.astype(np.uint64).reshape(-1)
    flat_positions = position_array.astype(np.uint64).reshape(-1)
    noise = np.empty((flat_seeds.size, vocabulary), dtype=np.float32)
    rows = max(1, _BLOCK_ELEMENTS // max(vocabulary, 1))
    for row in range(0, flat_seeds.size, rows):
        for token in range(0, vocabulary, _BLOCK_ELEMENTS):
            block = noise[row : row + rows, token : token + _BLOCK_ELEMENTS]
            _fill_gumbel(block, flat_seeds[row : row + rows], flat_positions[row : row + rows], token)
    return noise.reshape(*seed_array.shape, vocabulary)


def choose(logits: Floats, noise: Floats, settings: SamplingSettings) -> Ints:
    """The tokens that seeded sampling gives: int64 `[...]` for logits and noise `[..., vocabulary]`."""
    tokens: Ints = perturbed_scores(logits, noise, settings).argmax(axis=-1)
    return tokens


def perturbed_scores(logits: Floats, noise: Floats, settings: SamplingSettings) -> Floats:
    """`logits / T + G` on the support, `-inf` off it; the bare logits when greedy. Float32 `[..., vocabulary]`."""
    if settings.temperature == 0.0:
        return np.asarray(logits, dtype=np.float32)
    scaled = np.asarray(logits, dtype=np.float32) / np.float32(settings.temperature)
    scores = scaled + noise
    if settings.top_k == 0 and settings.top_p == 1.0:
        return scores
    return np.where(support(scaled, settings.top_k, settings.top_p), scores, np.float32(-np.inf))


def support(scaled_logits: Floats, top_k: int, top_p: float) -> npt.NDArray[np.bool_]:
    """Which tokens may be drawn: the `top_k` likeliest, then the fewest of them whose mass reaches `top_p`.

    Ties are broken by the smaller token id. At least one token is always in. Bool `[..., vocabulary]`.
    """
    order = np.argsort(-scaled_logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(scaled_logits, order, axis=-1).astype(np.float64)
    kept = np.ones(ranked.shape, dtype=np.bool_)
    if top_k:
        kept[..., top_k:] = False
    if top_p < 1.0:
        weights = np.where(kept, np.exp(ranked - ranked[..., :1]), 0.0)
        before = np.cumsum(weights, axis=-1) - weights
        kept &= before < top_p * weights.sum(axis=-1, keepdims=True)
        kept[..., 0] = True
    mask = np.empty_like(kept)
    np.put_along_axis(mask, order, kept, axis=-1)
    return mask


def token_logprobs(logits: Floats, tokens: npt.ArrayLike, temperature: float) -> Floats:
    """Log-probability of each token under `softmax(logits / T)` over the whole vocabulary (T = 1 when greedy).

    Logits `[..., vocabulary]`, tokens `[...]` -> float32 `[...]`.
    """
    scaled = np.asarray(logits, dtype=np.float64) / (temperature or 1.0)
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shifted, np.asarray(tokens, dtype=np.int64)[..., None], axis=-1)[..., 0]
    logprobs: Floats = (chosen - np.log(np.exp(shifted).sum(axis=-1))).astype(np.float32)
    return logprobs


def _fill_gumbel(block: Floats, seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], token: int) -> None:
    """Fill `block` `[rows, tokens]` with the noise of tokens `token`, `token + 1`, ... (`token` divisible by 4)."""
    rows, tokens = block.shape
    zero = np.zeros((1, 1), dtype=np.uint64)
    counters = np.arange(token // 4, (token + tokens + 3) // 4, dtype=np.uint64)[None, :]
    key = ((seeds & np.uint64(0xFFFFFFFF))[:, None], (seeds >> np.uint64(32))[:, None])
    words = philox4x32((counters, positions[:, None], zero, zero), key).reshape(rows, -1)[:, :tokens]
    block[:] = -np.log(-np.log((words + 0.5) * 2.0**-32))


def _check_range(values: npt.NDArray[np.generic], bits: int, name: str) -> None:
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must be an integer")
    if values.size and not (0 <= int(values.min()) and int(values.max()) < 1 << bits):
        raise ValueError(f"{name} must be at least 0 and below 2^{bits}")
