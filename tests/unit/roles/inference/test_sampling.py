"""Seeded sampling: noise that anyone can recompute, and the token that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from roles.inference.noise import Stream, gumbel_noise
from roles.inference.philox import philox4x32
from roles.inference.sampling import GROUP, SamplingSettings, draw, token_margins
from roles.inference.support import support

PLAIN = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=8)
WIDE = 2 * GROUP + 88  # three groups, the last a short one


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def noise(seed: int, position: int, items: int, stream: Stream = Stream.TOKENS) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), items, stream=stream)[0]


def sample(logits: torch.Tensor, count: int, settings: SamplingSettings = PLAIN) -> torch.Tensor:
    """`count` draws from one row of logits, each under its own seed."""
    return draw(logits.expand(count, -1), torch.arange(count), torch.zeros(count, dtype=torch.int64), settings).tokens


def wide_logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    return 2 * torch.randn(rows, WIDE, generator=torch.Generator().manual_seed(seed))


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Standard deviations by which Pearson's statistic of the draws passes its mean; tokens expected < 5 times are one."""
    expected = probabilities * len(tokens)
    seen = torch.bincount(tokens, minlength=len(expected)).double()
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    seen = torch.cat([seen[~rare], seen[rare].sum()[None]])
    kept = expected > 0
    degrees = int(kept.sum()) - 1
    statistic = float((((seen - expected) ** 2)[kept] / expected[kept]).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


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


@pytest.mark.parametrize("stream", Stream)
def test_gumbel_noise__first_words_are_philox(stream: Stream) -> None:
    seed, position = (0x299F31D0 << 32 | 0xA4093822) & (2**63 - 1), 5
    counter, key = words(1, position, stream, 0), words(seed & 0xFFFFFFFF, seed >> 32)
    uniform = (philox4x32(counter, key).double() + 0.5) / 2**32  # type: ignore[arg-type]
    assert noise(seed, position, 8, stream)[4:].tolist() == (-torch.log(-torch.log(uniform))).float()[0].tolist()


def test_gumbel_noise__independent_of_batch_and_start__top_06() -> None:
    alone = noise(9, 3, 700_001)
    together = gumbel_noise(
        torch.tensor([1, 9]), torch.tensor([2, 3]), 10, first=torch.tensor([0, 262_140]), stream=Stream.TOKENS
    )
    assert together[1].tolist() == alone[262_140:262_150].tolist()


def test_gumbel_noise__moments_of_a_standard_gumbel() -> None:
    seeds = torch.arange(64)
    values = gumbel_noise(seeds, torch.zeros_like(seeds), 4096, stream=Stream.TOKENS).double()
    assert abs(float(values.mean()) - 0.5772) < 0.01
    assert abs(float(values.var()) - np.pi**2 / 6) < 0.02


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (0, -1), (0, 2**32)])
def test_gumbel_noise__refuse_out_of_range(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        noise(seed, position, 4)


def test_draw__frequencies_are_softmax_across_groups() -> None:
    logits = wide_logits()[0]
    assert chi_square(sample(logits, 30_000), logits.double().softmax(0)) < 4


def test_draw__frequencies_of_a_small_vocabulary() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    assert chi_square(sample(probabilities.log(), 40_000), probabilities.double()) < 4


def test_draw__temperature_scales_logits_not_noise() -> None:
    logits = wide_logits(1)[0]
    tokens = sample(logits, 20_000, replace(PLAIN, temperature=0.5))
    assert chi_square(tokens, (2 * logits.double()).softmax(0)) < 4


@pytest.mark.parametrize("truncation", [{"top_k": 40}, {"top_p": 0.8}, {"top_k": 60, "top_p": 0.9}])
def test_draw__frequencies_on_the_support(truncation: dict[str, float]) -> None:
    settings, logits = replace(PLAIN, **truncation), wide_logits(2)[0]  # type: ignore[arg-type]
    allowed = support(logits[None], settings.top_k, settings.top_p)[0]
    tokens = sample(logits, 10_000, settings)
    assert bool(allowed[tokens].all())
    assert chi_square(tokens, logits.double().masked_fill(~allowed, -torch.inf).softmax(0)) < 4


def test_draw__greedy_ignores_the_seed() -> None:
    logits = wide_logits(3)[0]
    tokens = sample(logits, 20, replace(PLAIN, temperature=0.0))
    assert tokens.tolist() == [int(logits.argmax())] * 20


def test_draw__same_row_whatever_the_batch() -> None:
    logits, seeds, positions = wide_logits(4, rows=9), torch.arange(9), torch.arange(9)
    together = draw(logits, seeds, positions, PLAIN).tokens.tolist()
    rows = [draw(logits[i : i + 1], seeds[i : i + 1], positions[i : i + 1], PLAIN).tokens.item() for i in range(9)]
    assert together == rows


def test_draw__one_group_is_gumbel_max_over_tokens() -> None:
    logits = wide_logits(5)[:, :200]
    assert (
        draw(logits, torch.tensor([7]), torch.tensor([3]), PLAIN).tokens.item()
        == (logits[0] + noise(7, 3, 200)).argmax()
    )


def test_token_margins__hand_computed_across_groups() -> None:
    logits, token = wide_logits(6)[0], 2 * GROUP + 5
    groups = torch.stack([part.logsumexp(0) for part in torch.split(logits, GROUP)]) + noise(7, 3, 3, Stream.GROUPS)
    inner = (logits + noise(7, 3, WIDE))[2 * GROUP :]
    expected = groups.max() - groups[2] + inner.max() - inner[5]
    found = token_margins(logits[None], torch.tensor([token]), torch.tensor([7]), torch.tensor([3]), PLAIN)
    assert found.item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("truncation", [{}, {"top_k": 40}, {"top_p": 0.8}])
def test_token_margins__slightly_other_logits_miss_by_little(truncation: dict[str, float]) -> None:
    """Except at the border of the support, no small change of the logits makes a large margin."""
    settings, rows = replace(PLAIN, **truncation), 2000  # type: ignore[arg-type]
    logits, seeds, positions = wide_logits(7).expand(rows, -1), torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    other = logits + 0.01 * torch.randn(rows, WIDE, generator=torch.Generator().manual_seed(8))
    tokens = draw(other, seeds, positions, settings).tokens
    missed = token_margins(logits, tokens, seeds, positions, settings)
    assert float((missed == 0).float().mean()) > 0.98
    assert float((missed > 0.1).float().mean()) < (0.005 if truncation else 1e-9)


@pytest.mark.parametrize(
    "truncation", [{"top_p": 0.9}, {"top_p": 0.5}, {"top_k": 1}, {"top_k": 5}, {"top_k": 50, "top_p": 0.9}]
)
def test_token_margins__honest_noise_at_the_border_of_the_support(truncation: dict[str, float]) -> None:
    """A token just outside the worker's support but inside the validator's beats no honest token."""
    settings, rows = replace(PLAIN, **truncation), 2000  # type: ignore[arg-type]
    seeds, positions = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    logits = 2 * wide_logits(10, rows=rows)
    other = logits + 0.06 * torch.randn(rows, WIDE, generator=torch.Generator().manual_seed(11))
    tokens = draw(other, seeds, positions, settings).tokens
    assert float(token_margins(other, tokens, seeds, positions, settings).max()) == 0.0
    assert float(token_margins(logits, tokens, seeds, positions, settings).max()) < 0.5


def test_token_margins__all_but_all_of_the_mass_is_no_border() -> None:
    logits, tokens, seeds = wide_logits(12, rows=4), torch.arange(4), torch.arange(4)
    nearly = replace(PLAIN, top_p=math.nextafter(1.0, 0.0))
    whole, margins = (token_margins(logits, tokens, seeds, seeds, each) for each in (PLAIN, nearly))
    assert bool((margins <= whole + 1e-5).all())


def test_draw__logprobs_are_of_the_whole_vocabulary() -> None:
    logits, zero = wide_logits(9, rows=3), torch.zeros(3, dtype=torch.int64)
    drawn = draw(logits, torch.arange(3), zero, replace(PLAIN, temperature=0.7, top_k=5))
    expected = (logits / 0.7).log_softmax(-1).gather(1, drawn.tokens[:, None])[:, 0]
    assert drawn.logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_support__ties_go_to_the_smaller_id() -> None:
    assert support(torch.zeros(1, 4), 2, 1.0).tolist() == [[True, True, False, False]]
    assert support(torch.zeros(1, 4), 0, 0.25).tolist() == [[True, False, False, False]]


def test_support__large_nucleus_of_a_large_vocabulary() -> None:
    flat, steep = torch.zeros(1, 9000), torch.arange(9000.0)[None] / 100
    assert support(torch.cat([flat, steep]), 0, 0.9).sum(-1).tolist() == [8100, 231]
    assert support(flat, 8000, 0.5).sum() == 4000


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -1}])
def test_sampling_settings__refuse_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        replace(PLAIN, **bad)  # type: ignore[arg-type]
