"""A struck worker reports it and stops, the run goes on without it, and once the strike is lifted it works again."""

from __future__ import annotations

from pathlib import Path

from ledger.memory import MemoryLedger
from ledger.records import Strike
from roles.rules import Reason
from tests.swarm.simulation import FAST_TRAINING, SimNode, SimulatedSwarm


def ledgers_of(swarm: SimulatedSwarm) -> list[MemoryLedger]:
    """The ledger as each validator has it."""
    return [
        MemoryLedger(swarm.chain, run=swarm.spec.run_id, operator_key=node.operator_key) for node in swarm.validators
    ]


async def strike(swarm: SimulatedSwarm, node: SimNode) -> None:
    """A quorum of validators strikes a node."""
    made = Strike(swarm.spec.run_id, node.key.node, None, 0, Reason.WRONG_REWARD, "ab" * 32)
    ledgers = ledgers_of(swarm)
    await ledgers[0].strike(made, [await ledger.attest_strike(made) for ledger in ledgers])


async def lift(swarm: SimulatedSwarm, node: SimNode) -> None:
    """And takes it back."""
    ledgers = ledgers_of(swarm)
    await ledgers[0].lift(node.key.node, 0, [await ledger.attest_lift(node.key.node, 0) for ledger in ledgers])


async def test_worker__struck__stops_with_a_sentence_and_comes_back_when_lifted(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"steps": 1000})
    async with SimulatedSwarm.open(tmp_path, auto=True, training=training) as swarm:
        struck = swarm.workers[0]
        await swarm.events.wait("submission.sent", node_name=struck.name)
        await strike(swarm, struck)
        said = await swarm.events.wait("node.stopped", node_name=struck.name)
        assert "struck this node" in said["why"]
        sent = len(swarm.events.find("submission.sent", node_name=struck.name))
        trained = len(swarm.events.find("step.trained"))
        await swarm.events.wait("step.trained", count=trained + 2)  # without it
        await lift(swarm, struck)
        await swarm.start(struck)
        await swarm.events.wait("submission.sent", node_name=struck.name, count=sent + 1)
