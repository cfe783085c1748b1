"""A complete node that cheats: the real worker with an adversary's engine and forger in place of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.actors import Actor, Parts
from node.data_sets import load_run_tasks
from node.engines import build_engine
from node.testnet.adversaries.catalogue import Adversary
from node.testnet.adversaries.forger import Forger
from roles.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from roles.context import RunContext
    from roles.inference.engine import Engine
    from roles.tasks import Task


class CheatingWorker(Worker):
    """A worker that is normal except for what it submits."""

    def __init__(self, adversary: Adversary, context: RunContext, *, engine: Engine, task: Task, state: Path) -> None:
        super().__init__(context, engine=engine, task=task, state=state)
        forgery = adversary.forgery
        self._generator = Forger(context.spec, node=context.node, engine=engine, task=task, forgery=forgery)


async def build_adversary(parts: Parts, adversary: Adversary) -> Actor:
    """The cheating worker of a node."""

    def new_engine() -> Engine:
        model = parts.spec.model
        return build_engine(parts.config.device, dtype=model.dtype, attention=model.attention, chat=model.chat)

    return CheatingWorker(
        adversary,
        parts.context,
        engine=await parts.compute.run(adversary.engine, new_engine),
        task=load_run_tasks(parts.spec, parts.config.home),
        state=parts.state,
    )
