"""The loss of a micro-batch: an objective over its tokens, KL to the reference, entropy.

Each term is a sum over the tokens divided by a token count that the caller gives. So micro-batches and ranks add up to
the loss of the whole mini-batch, and no completion is weighted by its length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roles.rl.objectives import BOUNDS, OBJECTIVES, Clips, TokenLoss, Tokens

KL_LIMIT = 10.0  # the reference's clamp of log(ref / new)


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums over the masked tokens, divided by the count. `loss` carries the gradient; the
    others are detached scalars."""

    loss: Tensor
    kl: Tensor
    entropy: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_delta: Tensor


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The parameters of the objective. `delta` None is plain one-sided clipping; `low` and
    `high` None are its defaults."""

    eps: float = 0.2
    delta: float | None = 4.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    objective: str = "grpo"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError when the clips contradict each other."""
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must lie between 0 and 1, not {self.eps}")
        if self.delta is not None and self.delta <= 1 + self.eps:
            raise ValueError(f"delta must exceed 1 + eps = {1 + self.eps}, not {self.delta}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"the loss must be one of {', '.join(OBJECTIVES)}, not {self.objective}")
        if self.objective in ("tis", "icepop", "cispo") and not self.clips().low < self.clips().high:
            raise ValueError(f"the lower bound must lie below the upper one: {self.clips().low}, {self.clips().high}")

    def clips(self) -> Clips:
        """The bounds, with the objective's defaults where none are given."""
        low, high = BOUNDS[self.objective]
        return Clips(
            self.eps, self.delta, low if self.low is None else self.low, high if self.high is None else self.high
        )


def compute_kl(new: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new || reference) for each token: exp(d) - d - 1, d = reference - new.

    `d = ln 2 -> 0.307`. It is built from the *new* log-probabilities, so it has a gradient: 1 - exp(d).
    """
    difference = (reference - new).clamp(-KL_LIMIT, KL_LIMIT)
    return difference.exp() - difference - 1


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of softmax(logits) over the last axis: two equal logits -> 0.693."""
    return torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)


def compute_loss(
    given: Tokens,
    *,
    entropy: Tensor,
    tokens: float,
    weights: LossWeights,
    reference: Tensor | None = None,
) -> LossTerms:
    """Return the loss of one micro-batch.

    Args:
        given: its tokens, (N,).
        entropy: entropy of each token's distribution, (N,), with gradient where `entropy_coef` is not 0.
        tokens: number of completion tokens in the whole mini-batch: the normaliser.
        weights: the objective and its parameters.
        reference: log-probabilities under the reference policy, (N,); required where `kl_coef` is not 0.
    """
    judged: TokenLoss = OBJECTIVES[weights.objective](given, weights.clips())
    kl = torch.zeros_like(given.new) if reference is None else compute_kl(given.new, reference.detach())
    policy, mean_kl, mean_entropy = (_mean(values, given.mask, tokens) for values in (judged.loss, kl, entropy))
    loss = policy + weights.kl_coef * mean_kl - weights.entropy_coef * mean_entropy
    low, high, beyond = ((hit * given.mask).sum() / tokens for hit in (judged.low, judged.high, judged.delta))
    return LossTerms(
        loss=loss,
        kl=mean_kl.detach(),
        entropy=mean_entropy.detach(),
        clipped_low=low,
        clipped_high=high,
        clipped_delta=beyond,
    )


def _mean(values: Tensor, mask: Tensor, tokens: float) -> Tensor:
    # where() rather than a product: a masked token may hold inf or NaN, and 0 * inf is NaN
    return torch.where(mask > 0, values, torch.zeros_like(values)).sum() / tokens
