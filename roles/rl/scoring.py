"""Scores the tokens of a pack: only the part of a forward pass that training needs.

The model's trunk runs once over the pack, and its output embedding is applied, in chunks, to the positions that predict
a learned token. Loading a model tests whether this equals the model's own computation. A model that does more (a head
with other scales, layers that carry a state from row to row) is run by its own forward pass, one row at a time.
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
"""Between two computations of one log-probability in fp32; another row's tokens or a wrong
scale differ by whole units."""
PROBE = ((1, 2, 3), (5, 4, 3, 2, 1))
"""Completions of the test rows, which have the same prompt."""
_PLAIN: dict[str, Any] = {"temperature": 1.0, "entropy_gradient": False}


class TokenScores(NamedTuple):
    """The policy's log-probability and entropy of each learned token, both (N,)."""

    logprobs: Tensor
    entropy: Tensor


class Scorer(nn.Module):
    """A causal language model that returns log-probabilities instead of logits. `packs`: rows may share a pass.
    `shares`: rows with the same prompt may share it within a pass."""

    def __init__(self, model: Any) -> None:
        """Take the model, and test what it supports."""
        super().__init__()
        self.model = model
        for self.packs, self.shares in ((True, True), (True, False), (False, False)):
            if _agrees(self):
                return
        model.set_attn_implementation("eager")  # its attention is known only to its own code

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
        """Score one row by the model's own forward pass, with all of its logits at once."""
        logits = self.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        chosen = logits[0, batch.places].float() / temperature
        return TokenScores(*score_logits(chosen, batch.targets, entropy_gradient=entropy_gradient))


def _agrees(scorer: Scorer) -> bool:
    """Whether two rows, in one pass if they may share one, get the log-probabilities that the
    model's own code gives them."""
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
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # no such trunk, or one with other arguments
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
