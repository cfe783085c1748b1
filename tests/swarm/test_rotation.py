"""A worker's key is replaced in the middle of a run: the node continues where its old key stopped."""

from __future__ import annotations

from pathlib import Path

from dht.identity import NodeKey
from ledger.memory import MemoryLedger
from tests.builders import replace_key
from tests.swarm.simulation import FAST_TRAINING, SimulatedSwarm


async def test_worker__key_replaced__goes_on_and_hands_in_no_place_twice(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"steps": 1000})
    async with SimulatedSwarm.open(tmp_path, auto=True, training=training, workers=1) as swarm:
        (worker,) = swarm.workers
        await swarm.events.wait("submission.sent", node_name=worker.name, count=2)
        await swarm.kill(worker)
        old, worker.key = worker.key, NodeKey.generate()
        payer = MemoryLedger(swarm.chain, run=swarm.spec.run_id, operator_key=swarm.trainer.operator_key)
        await replace_key(payer, swarm.spec.run_id, old, worker.key)
        before = len(swarm.events.find("submission.sent", node_name=worker.name))
        await swarm.start(worker)
        await swarm.events.wait("submission.sent", node_name=worker.name, count=before + 6)
        trained = len(swarm.events.find("step.trained"))
        await swarm.events.wait("step.trained", count=trained + 1)
        trusted = swarm.trainer.trusted
        assert trusted is not None
        assert trusted.root_of(worker.key.node) == old.node
        assert trusted.equivocations(worker.key.node) == 0
        places = [(each["step"], each["index"]) for each in swarm.events.find("submission.sent")]
        assert len(places) == len(set(places))
