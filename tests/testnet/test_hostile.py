"""A network of real processes under attack, on request: `scripts/hostile`. Its in-memory twin runs with every change
(`tests/swarm/test_hostile.py`).

One validator lies, one never starts, a proposer is killed, a worker forges proofs, the leading trainer is stopped until
another leads, and the chain is down for a minute and then returns without its last blocks. What is final in the end
equals an independent count of the blobs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from dht.identity import NodeKey
from ledger.client import LedgerClient
from roles.shardcast.client import RelayClient
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from tests.recount import recount
from tests.testnet.conftest import Event, Network

REQUEST = "INTELLECT_NODE_HOSTILE"
pytestmark = [
    pytest.mark.testnet,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(REQUEST not in os.environ, reason="minutes long: scripts/hostile runs it"),
]
SIZES = {"workers": 2, "validators": 5, "relays": 2, "trainers": 2, "steps": 16}
LIAR, SILENT, *HONEST = (f"validator-{number}" for number in range(1, 6))
CLAIMED = "0x000000000000000000000000000000000000dEaD"
DOWN_SECONDS = 60.0
FORGOTTEN_BLOCKS = 5


def say(text: str) -> None:
    """Print progress to the user."""
    sys.stderr.write(text + "\n")


async def start(network: Network) -> None:
    """Start everybody except the silent validator, with one lying validator and one cheating worker."""
    for node in network.plan.nodes:
        if node.name == LIAR:
            await network.start_liar(node.name)
        elif node.name != SILENT:
            await network.start(node.name)
    await network.start_cheat("cheat", wallet=CLAIMED)
    await network.wait_for("trainer", "checkpoint.committed", where=lambda event: event["step"] == 2, seconds=400)


async def fence_leader(network: Network) -> None:
    """The leader is frozen until another leads; resumed, it finds itself fenced."""
    network.signal("trainer", signal.SIGSTOP)
    await network.wait_for("trainer-2", "trainer.resumed", seconds=200)
    network.signal("trainer", signal.SIGCONT)
    await network.wait_for("trainer", "trainer.standing_by", seconds=120)
    say("the leading trainer was fenced and stands by")


async def first_proposer(network: Network) -> str:
    """The honest validator that proposes a tally first."""
    async with asyncio.timeout(400):
        while True:
            for name in HONEST:
                if any(event["event"] == "tally.proposed" for event in network.said(name)):
                    return name
            await asyncio.sleep(0.1)


async def check_contributions(network: Network) -> None:
    """The last root equals the count of all blobs, and each step was committed once, by two leaders in all."""
    spec = network.prepared.spec
    ledger = await LedgerClient.connect([network.prepared.rpc], contract=spec.ledger.contract, run=spec.run_id)
    async with ledger, make_http() as http:
        infos = [RelayInfo(relay.key.node, f"http://127.0.0.1:{relay.http_port}") for relay in network.plan.relays]
        client = RelayClient(NodeKey.generate(), run=spec.run_id, trainers=(), relays=lambda: infos, http=http)

        async def fetch(digest: str) -> bytes:
            return await client.get(digest, limit=2**25)

        commits, roots = await ledger.commits(), await ledger.final_roots()
        assert [commit.step for commit in commits] == list(range(SIZES["steps"] + 1))
        assert {commit.term for commit in commits} == {1, 2}
        counted, leaves = await recount(spec, roots, fetch)
    assert counted == leaves
    assert set(counted) <= {worker.key.node for worker in network.plan.workers}
    assert sum(counted.values()) > 0
    say(f"{len(roots)} tallies: {sum(counted.values())} tokens of {len(counted)} workers, counted twice")


@pytest.mark.parametrize("network", [SIZES], indirect=True)
async def test_hostile_network__contributions_equal_an_independent_count(network: Network) -> None:
    await start(network)
    await fence_leader(network)
    proposer = await first_proposer(network)
    await network.kill(proposer)
    say(f"{proposer} proposed a tally and was killed")
    await network.stop_chain()
    say(f"the chain is down for {DOWN_SECONDS:.0f} s")
    await asyncio.sleep(DOWN_SECONDS)
    await network.restart_chain(forget=FORGOTTEN_BLOCKS)
    say(f"the chain is back without its last {FORGOTTEN_BLOCKS} blocks")
    await network.start(proposer)
    await network.wait_for("trainer-2", "run.ended", seconds=600)
    for name in ("trainer", "trainer-2", "worker-1", "worker-2", *HONEST):
        assert await network.children[name].wait() == 0, network.children[name].last_lines(12)
    await check_contributions(network)
    refused: list[Event] = [event for event in network.said("trainer-2") if event["event"] == "row.refused"]
    say(f"{len(refused)} rows refused by the new leader")
