"""Seeded sampling: which token follows from logits, a seed and a position, so that a validator can check it.

The vocabulary is cut into groups of 256 neighbouring token ids. The group is drawn first, by its mass, then the token
within it, both by the Gumbel-max trick (`noise.py`; DiFR, arXiv 2511.20621):

    z        = logits / T on the support, -inf off it             float32
    group    = argmax over k of (logsumexp of z in group k + G(groups, k))
    token    = argmax over v in that group of (z[v] + G(tokens, v))

which is a sample of `softmax(z)`, because a token's mass is its group's mass times its share of the group. A row costs
the noise of V/256 groups and 256 tokens instead of V tokens (ADR 19). Nothing in it depends on a border that two
engines could draw differently. `position` counts output tokens: 0 is the first token after the prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from roles.inference.noise import Stream, gumbel_noise
from roles.inference.support import support
from roles.spec import SamplingSpec

GROUP = 256
"""Tokens in a group. Cheapest near the square root of the vocabulary; the check's power does
not depend on it (ADR 19)."""
BORDER = 0.5
"""Distance in nats from the border of the support within which two honest engines may disagree about membership."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are drawn; part of the run spec. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

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

    @classmethod
    def from_spec(cls, spec: SamplingSpec) -> SamplingSettings:
        """The run's sampling settings as the engine takes them."""
        return cls(float(spec.temperature), float(spec.top_p), spec.top_k, spec.max_tokens)

    @property
    def is_greedy(self) -> bool:
        """Whether sampling ignores the seed."""
        return self.temperature == 0.0

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k > 0 or self.top_p < 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Tokens int64 `[rows]`, and their log-probabilities float32 `[rows]` under
    `softmax(logits / T)`, whole vocabulary."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, settings: SamplingSettings) -> Drawn:
    """The tokens that seeded sampling gives, with their log-probabilities. Logits `[rows, vocabulary]`, seeds and
    positions `[rows]`; one pass over the logits, on their device."""
    whole = _scaled(logits, settings)
    mass = _group_mass(whole)
    total = mass.logsumexp(-1)
    if settings.is_greedy:
        tokens = whole.argmax(-1)
    else:
        allowed = whole
        if settings.is_truncated:
            allowed = whole.masked_fill(~support(whole, settings.top_k, settings.top_p), -torch.inf)
            mass = _group_mass(allowed)
        groups = (mass + gumbel_noise(seeds, positions, mass.shape[1], stream=Stream.GROUPS)).argmax(-1)
        tokens = groups * GROUP + _within(allowed, groups, seeds, positions).argmax(-1)
    return Drawn(tokens, whole.gather(1, tokens[:, None])[:, 0] - total)


def token_margins(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    settings: SamplingSettings,
) -> torch.Tensor:
    """By how much each token misses being the choice: float32 `[rows]`, 0 where it is the choice.

    The margin is the sum of what its group lacks to the best group, what it lacks to the best token of its group, and
    what it lacks to the least likely token that may be in the support. A token at the border, which engines may
    include or exclude, is never a rival nor off the support, and counts only for its own group. When greedy:
    `max(logits) - logits[token]`.
    """
    scaled = _scaled(logits, settings)
    own = scaled.gather(1, tokens[:, None])
    if settings.is_greedy:
        return (scaled.amax(-1, keepdim=True) - own)[:, 0]
    groups = tokens // GROUP
    rivals = whole = scaled
    outside = torch.zeros_like(own)
    if settings.is_truncated:
        allowed = support(scaled, settings.top_k, settings.top_p)
        sure, possible = _about_border(scaled, allowed, settings)
        own_too = torch.zeros_like(allowed).scatter(1, tokens[:, None], True)
        outside = (scaled.masked_fill(~possible, torch.inf).amin(-1, keepdim=True) - own).clamp(min=0)
        rivals = scaled.masked_fill(~(sure | own_too), -torch.inf)
        whole = scaled.masked_fill(~(possible | own_too), -torch.inf)
    noise = gumbel_noise(seeds, positions, -(-scaled.shape[1] // GROUP), stream=Stream.GROUPS)
    best = (_group_mass(rivals) + noise).amax(-1, keepdim=True)
    missing = (best - (_group_mass(whole) + noise).gather(1, groups[:, None])).clamp(min=0)
    inner = _within(rivals, groups, seeds, positions)
    lacking = inner.amax(-1, keepdim=True) - inner.gather(1, tokens[:, None] % GROUP)
    return (outside + missing + lacking)[:, 0]


def _scaled(logits: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    exact = logits.float()
    return exact if settings.temperature in (0.0, 1.0) else exact / settings.temperature


def _about_border(
    scaled: torch.Tensor, allowed: torch.Tensor, settings: SamplingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens surely and those possibly in the support of another engine, where the support here is `allowed`.
    Sure are tokens more than `BORDER` above the likeliest excluded one; possible are those down to `BORDER` below
    the least likely included one; in both cases the log-odds of the nucleus's mass are shifted by as much. Bool
    `[rows, vocabulary]` each."""
    left_out = scaled.masked_fill(allowed, -torch.inf).amax(-1, keepdim=True)
    kept = scaled.masked_fill(~allowed, torch.inf).amin(-1, keepdim=True)
    sure = _nucleus_moved(scaled, allowed, settings, by=-BORDER) & (scaled >= left_out + BORDER)
    return sure, _nucleus_moved(scaled, allowed, settings, by=BORDER) | (scaled >= kept - BORDER)


def _nucleus_moved(
    scaled: torch.Tensor, allowed: torch.Tensor, settings: SamplingSettings, *, by: float
) -> torch.Tensor:
    """The support `allowed` with the log-odds of its nucleus's mass raised by `by` nats. Bool `[rows, vocabulary]`."""
    if settings.top_p == 1.0:
        return allowed
    moved = settings.top_p / (settings.top_p + (1 - settings.top_p) * math.exp(-by))
    return support(scaled, settings.top_k, min(moved, math.nextafter(1.0, 0.0)))


def _group_mass(scaled: torch.Tensor) -> torch.Tensor:
    """Logsumexp of every group, float32 `[rows, groups]`; the last group may be shorter."""
    whole = scaled.shape[1] // GROUP * GROUP
    parts = [scaled[:, :whole].reshape(len(scaled), -1, GROUP).logsumexp(-1)] if whole else []
    if whole < scaled.shape[1]:
        parts.append(scaled[:, whole:].logsumexp(-1, keepdim=True))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _within(scaled: torch.Tensor, groups: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Scores of the tokens of one group per row, float32 `[rows, GROUP]` or fewer; -inf past the vocabulary."""
    size, first = scaled.shape[1], groups * GROUP
    width = min(GROUP, size)
    tokens = first[:, None] + torch.arange(width, device=scaled.device)
    members = scaled.gather(1, tokens.clamp(max=size - 1)).masked_fill(tokens >= size, -torch.inf)
    return members + gumbel_noise(seeds, positions, width, first=first, stream=Stream.TOKENS)
