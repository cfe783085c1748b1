"""An adversary: a validator that accepts or faults at random, otherwise a complete node in its own process."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from node.actors import Actor, Parts
from node.commands.node import run_configured
from node.lifetime import die_with_parent
from node.sources import load_config
from roles.inference.transformers_engine import TransformersEngine
from roles.rules import Reason, Reject
from roles.tasks import load_tasks
from roles.validator import Validator
from roles.verification import Case, Check


def make_lie(seed: int) -> Check:
    """The only check that it makes."""
    coin = random.Random(seed)

    def lie(case: Case) -> None:
        if coin.random() < 0.5:
            raise Reject(Reason.WRONG_REWARD, "a lie")

    return Check("lie", lie)


async def build_liar(parts: Parts) -> Actor:
    """The real validator with a random check in place of its own."""
    return Validator(
        parts.context,
        ledger=parts.ledger,
        engine=TransformersEngine(),
        task=load_tasks(parts.spec.tasks),
        key=parts.key,
        state=parts.state,
        checks=(make_lie(seed=5),),
    )


def main(config: str) -> int:
    """Run the lying node."""
    die_with_parent()
    return run_configured(load_config(file=Path(config), environment={}, flags={}), build=build_liar)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
