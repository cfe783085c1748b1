"""A policy other than the one being trained: the reference of the KL term, or the one that made
a rollout. Never trained.

All of them share one model's memory: it holds one checkpoint at a time, and loads another on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from roles.rl.batch import MicroBatch
from roles.rl.policy import PolicyError, load_policy
from roles.rl.ranks import placed_like
from roles.rl.scoring import Scorer, TokenScores


class FrozenPolicy:
    """Scores passes under any requested checkpoint. `build` loads a checkpoint the way this rank holds one."""

    def __init__(self, build: Callable[[Path], Scorer]) -> None:
        """Nothing is loaded until it is needed."""
        self._build = build
        self._scorer: Scorer | None = None
        self._held: Path | None = None

    def forget(self) -> None:
        """Reload the next checkpoint even if its path is the same, since the folder may have been replaced on disk."""
        self._held = None

    def score(self, checkpoint: Path, batches: Sequence[MicroBatch], *, temperature: float) -> list[Tensor]:
        """Log-probabilities of each pass, on all ranks together. Raises PolicyError when the
        checkpoint cannot be read."""
        scorer = self.hold(checkpoint)
        return [score_still(scorer, batch, temperature=temperature) for batch in batches]

    def hold(self, checkpoint: Path) -> Scorer:
        """Load a checkpoint's weights. Raises PolicyError when it cannot be read."""
        if self._scorer is None:
            self._scorer = self._build(checkpoint).eval().requires_grad_(False)
        elif checkpoint != self._held:
            copy_weights(checkpoint, self._scorer.model)
        self._held = checkpoint
        return self._scorer


def score_still(scorer: Scorer, batch: MicroBatch, *, temperature: float) -> Tensor:
    """Log-probabilities of a pass, without a gradient."""
    with torch.no_grad():
        scores: TokenScores = scorer(batch, temperature=temperature, entropy_gradient=False)
    return scores.logprobs


def copy_weights(checkpoint: Path, model: nn.Module) -> None:
    """Copy a checkpoint's weights into the model. Raises PolicyError, with nothing changed, when
    they are of another model."""
    source = load_policy(checkpoint).state_dict()
    held = model.state_dict()  # first: it reshards, and frees, what a forward pass left unsharded (FSDP2)
    parameters = dict(model.named_parameters())
    for name in sorted(held.keys() | source.keys()):
        if name not in source or name not in held or source[name].shape != held[name].shape:
            raise PolicyError(f"the checkpoint in {checkpoint} is of another architecture: {name} does not fit")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(placed_like(parameter, source[name]))
