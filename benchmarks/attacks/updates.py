"""A policy some real updates away, made from the checkpoint by the run's own learner. A worker that runs it in place of
the right policy is as far off as one that still runs the right policy after others have moved on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.attacks.bench import Bench
from node.testnet.adversaries.engines import CheatingEngine
from roles.inference.engine import Engine, Request, SamplingSettings
from roles.rl.batch import TrainingGroup
from roles.rl.learner import Learner
from roles.rl.settings import GrpoSettings

TOKENS = 64
"""Tokens of each completion learned from; short, so that an update takes seconds."""
FIRST_GROUP = 1_000_000
"""First number of the groups learned from; no class is judged on these."""


class Updated(CheatingEngine):
    """Runs the policy after this many updates at this learning rate, one group of completions each."""

    def __init__(self, real: Engine, bench: Bench, *, learning_rate: float, updates: int) -> None:
        super().__init__(real)
        self._bench, self._updates = bench, updates
        self._settings = GrpoSettings(learning_rate=learning_rate, optimizer_steps=1, kl_coef=0.0)

    def load(self, checkpoint: Path) -> None:
        super().load(checkpoint)
        groups = [self._learned(number) for number in range(FIRST_GROUP, FIRST_GROUP + self._updates)]
        folder = Path(tempfile.mkdtemp(prefix="intellect-updated-"))
        try:
            learner = Learner(checkpoint, self._settings)
            for step, group in enumerate(groups, start=1):
                learner.step([group], step)
            learner.save_weights(folder / checkpoint.name)
            super().load(folder / checkpoint.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _learned(self, number: int) -> TrainingGroup:
        """Completions of the policy with every other one marked right: updates of the usual
        size in no useful direction."""
        requests: tuple[Request, ...] = self._bench.group(number).requests
        own = self._bench.settings
        short = SamplingSettings(own.temperature, own.top_p, own.top_k, min(TOKENS, own.max_tokens))
        said = self._real.generate(requests, short)
        return TrainingGroup(
            prompt=requests[0].prompt,
            completions=tuple(item.tokens for item in said),
            rewards=tuple(float(place % 2) for place in range(len(said))),
            policy_step=0,
            submission=f"{number:064x}",
        )
