"""What a model says of the tokens of a pack: the part of a forward pass that training needs, and no more.

The model's trunk runs once over the pack; its output embedding is applied to the places that predict a learned token, some at
a time.
Whether that is what the model itself computes is tried when it is loaded: one that does more (a head with other scales, layers
that carry a state from row to row) is run by its own forward pass, a row at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from roles.rl.attention import packing_of
from roles.rl.batch import MicroBatch, Row, build_batch
from roles.rl.head import score_hidden, score_logits

TOLERANCE = 1e-3
"""Between two ways to compute the same log-probability in fp32; another row's tokens or a wrong scale make whole units."""
PROBE = (3, 5)
"""Tokens of the two rows that are tried."""
_PLAIN: dict[str, Any] = {"temperature": 1.0, "entropy_gradient": False}


class TokenScores(NamedTuple):
    """What the policy says of each learned token, both (N,)."""

    logprobs: Tensor
    entropy: Tensor


class Scorer(nn.Module):
    """A causal language model that gives log-probabilities instead of logits. `packs` is whether rows may share a pass."""

    def __init__(self, model: Any) -> None:
        """Take the model, and try what it can."""
        super().__init__()
        self.model = model
        self.packs = True
        if not _agrees(self):
            self.packs = False
            if not _agrees(self):  # it attends in a way that only its own code knows
                model.set_attn_implementation("eager")

    def forward(self, batch: MicroBatch, *, temperature: float, entropy_gradient: bool) -> TokenScores:
        """Score a pack at the sampling temperature; a single row where `packs` is False."""
        if not self.packs:
            return self._score_whole(batch, temperature, entropy_gradient)
        trunk = self.model.get_decoder()
        packing = packing_of(batch.bounds, batch.input_ids.device)
        output = trunk(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **packing)
        head = self.model.get_output_embeddings()
        scores = score_hidden(
            output.last_hidden_state[0, batch.places],
            head.weight,
            batch.targets,
            temperature=temperature,
            softcap=getattr(self.model.config, "final_logit_softcapping", None),
            entropy_gradient=entropy_gradient,
        )
        return TokenScores(*scores)

    def _score_whole(self, batch: MicroBatch, temperature: float, entropy_gradient: bool) -> TokenScores:
        """By the model's own forward pass: one row, all of its logits at once."""
        logits = self.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        chosen = logits[0, batch.places].float() / temperature
        return TokenScores(*score_logits(chosen, batch.targets, entropy_gradient=entropy_gradient))


def _agrees(scorer: Scorer) -> bool:
    """Whether two rows, in one pass if they may share one, get the log-probabilities that the model's own code gives each."""
    model = scorer.model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    rows = [Row((0,), tuple(range(1, 1 + count)), 1.0) for count in PROBE if count < vocabulary]
    device = next(model.parameters()).device
    training, used = model.training, model.config._attn_implementation
    model.eval()
    try:
        with torch.no_grad():
            passes = [rows] if scorer.packs else [[row] for row in rows]
            ours = torch.cat([scorer(build_batch(own, device), **_PLAIN).logprobs for own in passes])
            model.set_attn_implementation("eager")
            alone = torch.cat([_score_eagerly(model, row, device) for row in rows])
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # no such trunk, or one of other arguments
        return False
    finally:
        model.set_attn_implementation(used)
        model.train(training)
    return bool((ours - alone).abs().max() < TOLERANCE)


def _score_eagerly(model: Any, row: Row, device: torch.device) -> Tensor:
    batch = build_batch([row], device)
    logs = model(input_ids=batch.input_ids, use_cache=False).logits[0, batch.places].float().log_softmax(-1)
    chosen: Tensor = logs.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    return chosen
