"""The leading trainer is killed -9: the other continues, the run ends, and the killed one returns as a stand-by."""

from __future__ import annotations

import pytest

from ledger.client import LedgerClient
from tests.testnet.conftest import Event, Network

pytestmark = [pytest.mark.testnet, pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(400)]

SIZES = {"workers": 1, "validators": 1, "relays": 1, "trainers": 2, "steps": 10}


@pytest.mark.parametrize("network", [SIZES], indirect=True)
async def test_leader_killed__the_other_goes_on_and_the_killed_one_stands_by__live_08(network: Network) -> None:
    await network.start_all()
    await network.wait_for("trainer", "state.published", seconds=180)
    await network.kill("trainer")
    await network.wait_for("trainer-2", "trainer.resumed", seconds=120)
    await network.start("trainer")
    standing = await network.wait_for("trainer", "trainer.standing_by", seconds=120)
    assert standing["term"] == 2
    await network.wait_for("trainer-2", "run.ended", seconds=180)
    for name in ("trainer", "trainer-2", "worker-1", "validator-1"):
        assert await network.children[name].wait() == 0, network.children[name].last_lines(12)
    spec = network.prepared.spec
    async with await LedgerClient.connect(
        [network.prepared.rpc], contract=spec.ledger.contract, run=spec.run_id
    ) as ledger:
        commits = await ledger.commits()
        assert [commit.step for commit in commits] == list(range(11))  # the contract takes each step once
        assert {commit.term for commit in commits} == {1, 2}
        assert (await ledger.final_roots())[-1].total > 0
    rebuilt: Event = await network.wait_for("trainer-2", "trainer.rebuilt")
    assert rebuilt["optimizer"].startswith("of step")
