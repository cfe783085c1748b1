"""The two-sided GRPO objective of INTELLECT-2 (arXiv 2505.07291, section 3.4), token by token.

Every function is pure tensor arithmetic over (B, T) of completion tokens. A sum is divided by a token count the caller
gives, so that micro-batches add up to the loss of the whole mini-batch and no completion is weighted by its length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8: past every clip, yet finite in fp32, so a wild row gives no NaN
KL_LIMIT = 10.0  # the reference's clamp of log(ref / new)


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums over the masked tokens; `loss` carries the gradient, all others are detached scalars."""

    loss: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_delta: Tensor
    max_ratio: Tensor


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The numbers of the objective. `delta` None is plain one-sided PPO clipping."""

    eps: float = 0.2
    delta: float | None = 4.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError when the clips would contradict each other."""
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must lie between 0 and 1, not {self.eps}")
        if self.delta is not None and self.delta <= 1 + self.eps:
            raise ValueError(f"delta must exceed 1 + eps = {1 + self.eps}, not {self.delta}")


def compute_token_loss(ratio: Tensor, advantages: Tensor, weights: LossWeights) -> Tensor:
    """Return -min(min(r, delta) A, clip(r, 1 - eps, 1 + eps) A), elementwise.

    With eps 0.2, delta 4: `r 1.5, A 1 -> -1.2`; `r 0.5, A -1 -> 0.8`; `r 100, A -1 -> 4` (PPO: 100), and there the
    gradient is 0, so that one improbable token cannot throw the policy.
    """
    bounded = ratio if weights.delta is None else ratio.clamp(max=weights.delta)
    clipped = ratio.clamp(1 - weights.eps, 1 + weights.eps)
    return -torch.minimum(bounded * advantages, clipped * advantages)


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
    *,
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor,
    tokens: float,
    weights: LossWeights,
    reference: Tensor | None = None,
) -> LossTerms:
    """Return the GRPO loss of one micro-batch.

    Args:
        new: log-probabilities under the weights being trained, (B, T), with gradient.
        old: the same under the weights before the step, (B, T).
        advantages: one a completion, (B,).
        mask: 1.0 for a completion token, else 0.0, (B, T).
        entropy: entropy of each token's distribution, (B, T), with gradient where `entropy_coef` is not 0.
        tokens: completion tokens of the whole mini-batch: the normaliser.
        reference: log-probabilities under the reference policy, (B, T); needed where `kl_coef` is not 0.
    """
    ratio = (new - old.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    advantage = advantages.unsqueeze(1)
    kl = torch.zeros_like(new) if reference is None else compute_kl(new, reference.detach())
    policy = _mean(compute_token_loss(ratio, advantage, weights), mask, tokens)
    mean_kl, mean_entropy = _mean(kl, mask, tokens), _mean(entropy, mask, tokens)
    loss = policy + weights.kl_coef * mean_kl - weights.entropy_coef * mean_entropy
    low, high, beyond = _count_clipped(ratio.detach(), advantage, mask, weights)
    return LossTerms(
        loss=loss,
        policy=policy.detach(),
        kl=mean_kl.detach(),
        entropy=mean_entropy.detach(),
        clipped_low=low / tokens,
        clipped_high=high / tokens,
        clipped_delta=beyond / tokens,
        max_ratio=(ratio.detach() * mask).max(),
    )


def _mean(values: Tensor, mask: Tensor, tokens: float) -> Tensor:
    # where() and not a product: a padding position may hold inf or NaN, and 0 * inf is NaN
    return torch.where(mask > 0, values, torch.zeros_like(values)).sum() / tokens


def _count_clipped(ratio: Tensor, advantage: Tensor, mask: Tensor, weights: LossWeights) -> tuple[Tensor, ...]:
    """Count the tokens whose policy gradient each of the three clips has stopped: low, high, delta."""
    low = (ratio < 1 - weights.eps) & (advantage < 0)
    high = (ratio > 1 + weights.eps) & (advantage > 0)
    beyond = torch.zeros_like(low) if weights.delta is None else (ratio > weights.delta) & (advantage < 0)
    return tuple((hit * mask).sum() for hit in (low, high, beyond))
