"""Log-probabilities and entropies from hidden states, without holding the logits of all tokens at once.

A vocabulary of 150,000 takes 600 KB of logits a token. Here they exist for a few hundred tokens at a time,
in the forward pass and again in the backward pass, where they are recomputed (as in fused linear
cross-entropy, arXiv 2410.10989).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roles.rl.grpo import compute_entropy

LOGIT_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
"""fp32 logits held at once. On a CPU twice as much is no faster, and with half as much the small matrix products begin
to cost. A GPU needs thousands of rows, and each chunk updates the whole gradient of the embedding once."""


def score_hidden(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    softcap: float | None = None,
    entropy_gradient: bool = False,
    logit_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Score targets (N,) from hidden states (N, H) and the output embedding (V, H):
    log-probabilities and entropies, (N,).

    Logits are bounded to [-softcap, softcap] where the model does so, then divided by the temperature. Entropies carry
    a gradient only on request. `logit_bytes`: fp32 logits held at once; chosen by device when not given.
    """
    most = logit_bytes or LOGIT_BYTES.get(weight.device.type, LOGIT_BYTES["cpu"])
    rows = max(1, most // (4 * weight.shape[0]))
    if len(hidden) <= rows:  # they fit: what autograd keeps is cheaper than recomputing
        logits = _logits(hidden, weight, temperature, softcap)
        return score_logits(logits, targets, entropy_gradient=entropy_gradient)
    scored: tuple[Tensor, Tensor] = _Chunked.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, softcap, entropy_gradient, rows
    )
    return scored


def score_logits(logits: Tensor, targets: Tensor, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """As `score_hidden`, from logits (N, V) in fp32 that already include the temperature."""
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        return logprobs, compute_entropy(logits)


def _logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    logits = (hidden @ weight.t()).float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits if temperature == 1.0 else logits / temperature


class _Chunked(torch.autograd.Function):
    """As `score_hidden`, in chunks of rows. Keeps hidden states, normalisers and entropies, and
    recomputes logits in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        softcap: float | None,
        entropy_gradient: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        """Score chunk by chunk."""
        logprobs, entropy, normaliser = (
            torch.empty(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(3)
        )
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part], weight, temperature, softcap)
            normaliser[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1) - normaliser[part]
            weights = (logits - normaliser[part].unsqueeze(-1)).exp_()
            entropy[part] = normaliser[part] - torch.linalg.vecdot(weights, logits)
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.numbers = (temperature, softcap, entropy_gradient, rows)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden states and output embedding, the latter accumulated in fp32."""
        hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
        temperature, softcap, entropy_gradient, rows = ctx.numbers
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part], weight, temperature, softcap)
            slope = _slope(
                logits,
                targets[part],
                normaliser[part],
                entropy=entropy[part],
                of_logprobs=gradients[0][part],
                of_entropy=gradients[1][part] if entropy_gradient else None,
            )
            if softcap is not None:  # derivative of the tangent, from the already capped logits
                slope *= 1 - (logits * (temperature / softcap)).square_()
            slope = slope.div_(temperature).to(weight.dtype)
            to_hidden[part] = slope @ weight
            if to_weight.dtype == slope.dtype:
                to_weight.addmm_(slope.t(), hidden[part])
            else:
                to_weight += slope.t() @ hidden[part]
        return to_hidden, to_weight.to(weight.dtype), None, None, None, None, None


def _slope(
    logits: Tensor,
    targets: Tensor,
    normaliser: Tensor,
    *,
    entropy: Tensor,
    of_logprobs: Tensor,
    of_entropy: Tensor | None,
) -> Tensor:
    """Gradient with respect to the logits: onehot - p for a log-probability, -p (log p + H) for the entropy."""
    logs = logits - normaliser.unsqueeze(-1)
    slope = logs.exp()
    if of_entropy is None:
        slope *= -of_logprobs.unsqueeze(-1)
    else:
        slope *= (logs + entropy.unsqueeze(-1)).mul_(-of_entropy.unsqueeze(-1)).sub_(of_logprobs.unsqueeze(-1))
    slope.scatter_add_(-1, targets.unsqueeze(-1), of_logprobs.unsqueeze(-1).to(slope.dtype))
    return slope
