"""An adversary: a worker that submits random tokens with forged proofs, otherwise a
complete node in its own process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from node.actors import Actor, Parts
from node.commands.node import run_configured
from node.config import NodeConfig
from node.lifetime import die_with_parent
from node.testnet.adversaries.engines import CheatingEngine
from roles.inference.engine import Completion, Engine, Request, SamplingSettings
from roles.inference.transformers_engine import TransformersEngine
from roles.tasks import load_tasks
from roles.worker import Worker

LENGTH = 30
FIRST_CHARACTER = 2  # after <pad> and <eos>


class ForgingEngine(CheatingEngine):
    """Never runs the model: tokens and hidden states are noise, log-probabilities are made up."""

    def __init__(self, real: Engine) -> None:
        super().__init__(real)
        self._noise = torch.Generator().manual_seed(1)
        self._hidden = 0

    def load(self, checkpoint: Path) -> None:
        self._real.load(checkpoint)
        self._hidden = int(self._real.prefill([((FIRST_CHARACTER,), (FIRST_CHARACTER,))])[0].states.shape[1])

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        return [self._forge() for _ in requests]

    def _forge(self) -> Completion:
        tokens = torch.randint(FIRST_CHARACTER, self.vocabulary, (LENGTH,), generator=self._noise).tolist()
        states = torch.randn(LENGTH + 1, self._hidden, generator=self._noise)
        return Completion((*tokens, self.eos), "eos", (-0.1,) * (LENGTH + 1), states)


async def build_cheat(parts: Parts) -> Actor:
    """The real worker with the forging engine."""
    return Worker(
        parts.context,
        engine=ForgingEngine(TransformersEngine()),
        task=load_tasks(parts.spec.tasks),
        state=parts.state,
    )


def main(join: str, data: str, wallet: str) -> int:
    """Run the cheating node."""
    die_with_parent()
    torch.set_num_threads(1)
    return run_configured(NodeConfig(role="worker", join=join, data=Path(data), wallet=wallet), build=build_cheat)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
