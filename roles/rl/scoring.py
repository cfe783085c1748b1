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

from roles.inference.model_sizes import text_config
from roles.rl.attention import packing_of
from roles.rl.batch import MicroBatch, Row, build_batch
from roles.rl.head import score_hidden, score_logits

TOLERANCE = 1e-3
"""Between two ways to compute the same log-probability in fp32; another row's tokens or a wrong scale make whole units."""
PROBE = ((1, 2, 3), (5, 4, 3, 2, 1))
"""Completions of the rows that are tried, which have one prompt."""
_PLAIN: dict[str, Any] = {"temperature": 1.0, "entropy_gradient": False}


class TokenScores(NamedTuple):
    """What the policy says of each learned token, both (N,)."""

    logprobs: Tensor
    entropy: Tensor


class Scorer(nn.Module):
    """A causal language model that gives log-probabilities instead of logits. `packs` is whether rows may share a pass, `shares`
    whether those with one prompt may share it there."""

    def __init__(self, model: Any) -> None:
        """Take the model, and try what it can."""
        super().__init__()
        self.model = model
        for self.packs, self.shares in ((True, True), (True, False), (False, False)):
            if _agrees(self):
                return
        model.set_attn_implementation("eager")  # it attends in a way that only its own code knows

    def forward(self, batch: MicroBatch, *, temperature: float, entropy_gradient: bool) -> TokenScores:
        """Score a pack at the sampling temperature; a single row where `packs` is False."""
        if not self.packs:
            return self._score_whole(batch, temperature, entropy_gradient)
        trunk = self.model.get_decoder()
        packing = packing_of(batch.bounds, batch.input_ids.device, batch.stems)
        output = trunk(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **packing)
        head = self.model.get_output_embeddings()
        scores = score_hidden(
            output.last_hidden_state[0, batch.places],
            head.weight,
            batch.targets,
            temperature=temperature,
            softcap=getattr(text_config(self.model.config), "final_logit_softcapping", None),
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
    rows = [Row((1, 0), completion, 1.0) for completion in PROBE if max(completion) < vocabulary]
    device = next(model.parameters()).device
    training, used = model.training, model.config._attn_implementation
    model.eval()
    try:
        with torch.no_grad():
            passes = [rows] if scorer.packs else [[row] for row in rows]
            batches = [build_batch(own, device, shares=scorer.shares) for own in passes]
            ours = torch.cat([scorer(batch, **_PLAIN).logprobs for batch in batches])
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
