"""Worker and trainer over memory parts."""

from __future__ import annotations

from pathlib import Path

from tests.swarm.simulation import SimulatedSwarm


async def test_swarm__trains_to_the_end(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, auto=True) as swarm:
        await swarm.events.wait("run.ended", timeout=60)
        steps = [row["step"] for row in swarm.events.find("checkpoint.committed")]
        assert steps == [0, 1, 2, 3, 4]
