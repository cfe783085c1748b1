"""Current objectives for learning from another policy's rollouts, behind one interface.

Each takes the tokens of whole sequences and returns a loss per token, and the tokens whose policy gradient it
has stopped. `r = pi / pi_old`, where `old` is the policy that the spec's `old_logprobs` selects. `rho =
pi_before / pi_behaviour` compares the weights before the step with the rollout's own policy. Pure tensor
arithmetic over (N,) tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8: beyond every clip but finite in fp32, so an extreme token gives no NaN


@dataclass(frozen=True, slots=True)
class Tokens:
    """The inputs of a loss, (N,) each. `sequence` numbers the completions from 0; each is contained whole."""

    new: Tensor  # log-probabilities under the weights being trained, with gradient
    old: Tensor  # under the policy in the ratio's denominator
    behaviour: Tensor | None  # under the rollout's own policy; None where the loss does not need it
    advantages: Tensor
    sequence: Tensor  # int64
    sequences: int
    mask: Tensor  # 1.0, or 0.0 for a token that does not count

    @property
    def ratio(self) -> Tensor:
        """pi / pi_old, with gradient."""
        return (self.new - self.old.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    @property
    def correction(self) -> Tensor:
        """pi_before / pi_behaviour, without gradient. Raises ValueError where the rollout's policy was not scored."""
        if self.behaviour is None:
            raise ValueError("this loss needs the log-probabilities of the rollouts' own policy")
        return (self.old - self.behaviour).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss per token, and which tokens have lost their policy gradient to the lower bound,
    the upper bound, or delta."""

    loss: Tensor
    low: Tensor  # bool
    high: Tensor
    delta: Tensor


@dataclass(frozen=True, slots=True)
class Clips:
    """The bounds. `eps` and `delta` apply to the ratio; `low` and `high` are specific to the loss (see `BOUNDS`)."""

    eps: float = 0.2
    delta: float | None = 4.0  # None: plain one-sided PPO clipping
    low: float = 0.0
    high: float = 0.0


def two_sided(ratio: Tensor, advantages: Tensor, *, eps: float, delta: float | None) -> Tensor:
    """Return -min(min(r, delta) A, clip(r, 1 - eps, 1 + eps) A), elementwise (INTELLECT-2,
    arXiv 2505.07291, section 3.4).

    With eps 0.2, delta 4: `r 1.5, A 1 -> -1.2`; `r 0.5, A -1 -> 0.8`; `r 100, A -1 -> 4` (PPO: 100), and there the
    gradient is 0, so that one improbable token cannot throw the policy.
    """
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.minimum(bounded * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)


def grpo(tokens: Tokens, clips: Clips) -> TokenLoss:
    """INTELLECT-2's two-sided GRPO."""
    ratio, advantages = tokens.ratio, tokens.advantages
    still = ratio.detach()
    beyond = torch.zeros_like(still, dtype=torch.bool)
    if clips.delta is not None:
        beyond = (still > clips.delta) & (advantages < 0)
    return TokenLoss(
        loss=two_sided(ratio, advantages, eps=clips.eps, delta=clips.delta),
        low=(still < 1 - clips.eps) & (advantages < 0),
        high=(still > 1 + clips.eps) & (advantages > 0),
        delta=beyond,
    )


def tis(tokens: Tokens, clips: Clips) -> TokenLoss:
    """Truncated importance sampling: clip(rho, low, high) times the two-sided term. `rho 3, r 1, A 1, high 2 -> -2`."""
    term = grpo(tokens, clips)
    weight = tokens.correction.clamp(clips.low, clips.high)
    return TokenLoss(weight * term.loss, term.low, term.high, term.delta)


def icepop(tokens: Tokens, clips: Clips) -> TokenLoss:
    """IcePop (arXiv 2510.18855): rho times the two-sided term, and 0 for a token whose rho lies outside [low, high].

    With 0.5 and 5: `rho 2, r 1, A 1 -> -2`; `rho 6 -> 0`; `rho 0.4 -> 0`.
    """
    term, rho = grpo(tokens, clips), tokens.correction
    below, above = rho < clips.low, rho > clips.high
    kept = torch.where(below | above, torch.zeros_like(rho), rho)
    return TokenLoss(kept * term.loss, term.low | below, term.high | above, term.delta)


def cispo(tokens: Tokens, clips: Clips) -> TokenLoss:
    """CISPO (arXiv 2506.13585): -sg[clip(r, low, high)] A log pi: the weight is bounded, and no token is dropped.

    With 0 and 5: `r 2, A 1, log pi -1 -> 2`, gradient -2; `r 100 -> 5`, gradient -5, with
    respect to the log-probability.
    """
    weight = tokens.ratio.detach().clamp(clips.low, clips.high)
    none = torch.zeros_like(weight, dtype=torch.bool)
    return TokenLoss(-weight * tokens.advantages * tokens.new, none, none, none)


def gspo(tokens: Tokens, clips: Clips) -> TokenLoss:
    """GSPO (arXiv 2507.18071): the ratio of a sequence is the geometric mean of its tokens',
    clipped to [1 - low, 1 + high].

    Each token carries its sequence's term, so that the mean over tokens stays exact over micro-batches and ranks.
    `r (2, 8) -> s = 4`; with A 1 and high 4e-4 each of the two tokens gives -1.0004.
    """
    log_ratio = (tokens.new - tokens.old.detach()) * tokens.mask
    zeros = torch.zeros(tokens.sequences, dtype=log_ratio.dtype, device=log_ratio.device)
    sums, counts = (zeros.index_add(0, tokens.sequence, values) for values in (log_ratio, tokens.mask.to(zeros.dtype)))
    means = sums / counts.clamp(min=1)
    ratio = means.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()[tokens.sequence]
    still, advantages = ratio.detach(), tokens.advantages
    clipped = ratio.clamp(1 - clips.low, 1 + clips.high)
    low, high = (still < 1 - clips.low) & (advantages < 0), (still > 1 + clips.high) & (advantages > 0)
    return TokenLoss(-torch.minimum(ratio * advantages, clipped * advantages), low, high, torch.zeros_like(low))


def dppo(tokens: Tokens, clips: Clips) -> TokenLoss:
    """DPPO (arXiv 2602.04879): -A r, and 0 for a token whose *probability* has moved too far in the direction of A.

    With 0.2 and 0.2: `pi_old 0.3, pi 0.6, A 1 -> 0` (moved by 0.3); `pi_old 0.01, pi 0.05, A 1 -> -5`: a rare token's
    ratio becomes large long before its probability does.
    """
    advantages, moved = tokens.advantages, tokens.new.detach().exp() - tokens.old.detach().exp()
    low, high = (advantages < 0) & (moved < -clips.low), (advantages > 0) & (moved > clips.high)
    loss = -advantages * tokens.ratio
    return TokenLoss(torch.where(low | high, torch.zeros_like(loss), loss), low, high, torch.zeros_like(low))


OBJECTIVES: Mapping[str, Callable[[Tokens, Clips], TokenLoss]] = {
    "grpo": grpo,
    "tis": tis,
    "cispo": cispo,
    "gspo": gspo,
    "icepop": icepop,
    "dppo": dppo,
}
BOUNDS: Mapping[str, tuple[float, float]] = {
    "grpo": (0.0, 0.0),  # unused: eps and delta suffice
    "tis": (0.0, 2.0),
    "cispo": (0.0, 5.0),
    "gspo": (3e-4, 4e-4),
    "icepop": (0.5, 5.0),
    "dppo": (0.2, 0.2),
}
"""Default `low` and `high` of each loss, from its paper or from the system that uses it."""
CORRECTED = frozenset({"tis", "icepop"})
"""Losses that compare the weights before the step with the rollouts' own policy."""
