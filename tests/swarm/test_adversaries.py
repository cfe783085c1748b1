"""Cheating workers in a swarm with judging validators: each is refused for its reason and struck out, and the
honest ones keep their credit."""

from __future__ import annotations

import functools
from pathlib import Path

from node.testnet.adversaries.catalogue import ADVERSARIES
from node.testnet.adversaries.worker import CheatingWorker
from roles.inference.engine import Engine
from tests.swarm.simulation import FAST_TRAINING, SimulatedSwarm

TRAINING = FAST_TRAINING.model_copy(update={"steps": 1000})
KINDS = ("babbling", "inflated-rewards", "chosen-seeds")


async def test_adversaries__are_struck_out_and_the_honest_keep_their_credit(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, workers=1, validators=2, training=TRAINING) as swarm:
        for kind in KINDS:
            adversary = ADVERSARIES[kind]

            def engine(real: Engine, kind: str = kind) -> Engine:
                return ADVERSARIES[kind].engine(lambda: real)

            cheat = await swarm.add_worker(engine=engine, worker=functools.partial(CheatingWorker, adversary))
            refused = await swarm.events.wait("submission.refused", node_name=cheat.name)
            assert refused["reason"].upper() in {reason.name for reason in adversary.expects}
            await swarm.events.wait("node.ejected", node=cheat.key.node)
            assert not swarm.events.find("submission.accepted", node_name=cheat.name)
        honest = swarm.workers[0]
        assert swarm.events.find("submission.accepted", node_name=honest.name)
        assert {item["node"] for item in swarm.events.find("node.ejected")} == {n.key.node for n in swarm.workers[1:]}
