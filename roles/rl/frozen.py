"""Another policy than the one being trained: the reference of the KL term, or the one that made a rollout. Never trained.

One model's memory for all of them: it holds one checkpoint at a time, and takes the next when that is asked for.
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
    """Scores passes with whatever checkpoint is asked for. `build` loads a checkpoint as this rank keeps one."""

    def __init__(self, build: Callable[[Path], Scorer]) -> None:
        """Nothing is loaded before it is needed."""
        self._build = build
        self._scorer: Scorer | None = None
        self._held: Path | None = None

    def forget(self) -> None:
        """Read the next checkpoint anew, whatever its name: another may have taken its place on the disk."""
        self._held = None

    def score(self, checkpoint: Path, batches: Sequence[MicroBatch], *, temperature: float) -> list[Tensor]:
        """Log-probabilities of each pass, on all ranks together. Raises PolicyError when the checkpoint cannot be read."""
        scorer = self.hold(checkpoint)
        return [score_still(scorer, batch, temperature=temperature) for batch in batches]

    def hold(self, checkpoint: Path) -> Scorer:
        """Take a checkpoint's weights. Raises PolicyError when it cannot be read."""
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
    """Give the model a checkpoint's weights. Raises PolicyError when it is of another model; nothing has changed then."""
    source = load_policy(checkpoint).state_dict()
    held = model.state_dict()  # first: it shards again, and frees, what a forward pass left whole (FSDP2)
    parameters = dict(model.named_parameters())
    for name in sorted(held.keys() | source.keys()):
        if name not in source or name not in held or source[name].shape != held[name].shape:
            raise PolicyError(f"the checkpoint in {checkpoint} is of another architecture: {name} does not fit")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(placed_like(parameter, source[name]))
