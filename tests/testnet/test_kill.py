"""Killing any one process other than trainer and chain does not stop the run; a killed trainer resumes where it was."""

from __future__ import annotations

import pytest

from tests.testnet.conftest import Event, Network

pytestmark = [pytest.mark.testnet, pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(300)]

SIZES = {"workers": 2, "validators": 3, "relays": 2, "steps": 60}


async def committed_after(network: Network, step: int) -> int:
    """Wait for a checkpoint later than `step`, and return it."""

    def is_later(event: Event) -> bool:
        return int(event["step"]) > step

    return int((await network.wait_for("trainer", "checkpoint.committed", where=is_later))["step"])


def newest_commit(network: Network) -> int:
    """The newest checkpoint the trainer has committed."""
    return max(int(event["step"]) for event in network.said("trainer") if event["event"] == "checkpoint.committed")


@pytest.mark.parametrize("network", [SIZES], indirect=True)
async def test_kill__one_of_each_kind_then_the_trainer_resumes__live_04_key_11_ux_08(network: Network) -> None:
    await network.start_all()
    await network.wait_for("trainer", "checkpoint.committed", where=lambda event: event["step"] == 1, seconds=180)
    for victim in ("relay-1", "validator-1", "worker-1"):
        before = newest_commit(network)
        await network.kill(victim)
        await committed_after(network, before + 1)
    await network.kill("trainer")
    before = newest_commit(network)
    await network.start("trainer")
    resumed = await network.wait_for("trainer", "trainer.resumed", seconds=120)
    assert resumed["checkpoint"] >= before  # CKPT-01, CKPT-03: what was made is not made again
    assert await committed_after(network, resumed["checkpoint"] + 1) > before
    trained = [event["step"] for event in network.said("trainer") if event["event"] == "step.trained"]
    assert len(trained) == len(set(trained)), "a step was trained twice"
