"""Small steps in bfloat16: every node and relay uses deltas, and those that cannot are served the shards."""

from __future__ import annotations

from pathlib import Path

import torch

from roles.spec import BroadcastSpec
from tests.swarm.simulation import FAST_TRAINING, SimulatedSwarm

SMALL_STEPS = FAST_TRAINING.model_copy(update={"steps": 7, "learning_rate": "0.000003"})


async def test_deltas__everybody_moves_by_them(tmp_path: Path) -> None:
    """A late joiner gets shards that relays rebuilt; a worker that missed two checkpoints follows the chain."""
    async with SimulatedSwarm.open(
        tmp_path,
        training=SMALL_STEPS,
        validators=1,
        dtype=torch.bfloat16,
        broadcast=BroadcastSpec(anchor_every=100),
        seed=1,
    ) as swarm:
        absent = swarm.workers[1]
        await swarm.events.wait("weights.loaded", node_name=absent.name)
        await swarm.kill(absent)
        held = max(row["policy_step"] for row in swarm.events.find("weights.fetched", node_name=absent.name))
        await swarm.events.wait("checkpoint.committed", step=held + 3)
        since = len(swarm.events.rows)
        await swarm.start(absent)
        late = await swarm.add_worker()
        await swarm.events.wait("run.ended")
        fetched = swarm.events.find("checkpoint.fetched")

        first_of_late = next(row for row in fetched if row["node_name"] == late.name)
        assert first_of_late["full"] > 90_000
        assert first_of_late["delta"] == 0
        again = next(row for row in swarm.events.rows[since:] if row in fetched and row["node_name"] == absent.name)
        assert again["step"] >= held + 3
        assert (again["full"], again["delta"] > 0) == (0, True)
        for node in (swarm.workers[0], *swarm.validators):
            later = [row for row in fetched if row["node_name"] == node.name and row["step"] > 0][1:]
            assert later
            assert all(row["full"] == 0 and 0 < row["delta"] < 10_000 for row in later)
        rebuilt = {row["step"] for row in swarm.events.find("checkpoint.rebuilt")}
        assert rebuilt >= {1, 2, 3, 4, 5, 6}
        assert not swarm.events.find("delta.refused")
        assert not swarm.events.find("submission.refused")


async def test_deltas__great_steps_go_whole(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"steps": 2})
    async with SimulatedSwarm.open(tmp_path, training=training, auto=True) as swarm:
        await swarm.events.wait("run.ended")
        assert {row["step"] for row in swarm.events.find("delta.skipped")} == {1, 2}
        assert not [row for row in swarm.events.find("checkpoint.fetched") if row["delta"]]
