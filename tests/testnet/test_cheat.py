"""A network of real processes with one cheating worker: it gets no credit, and the run goes on to a clean end."""

from __future__ import annotations

import asyncio
import json

import pytest

from ledger.client import LedgerClient
from node.testnet.processes import node_command
from roles.shardcast.relay_http import make_http
from roles.tally import open_final_tally
from tests.testnet.conftest import Network

pytestmark = [pytest.mark.testnet, pytest.mark.slow, pytest.mark.timeout(300)]

CLAIMED = "0x000000000000000000000000000000000000dEaD"
SIZES = {"workers": 1, "validators": 2, "relays": 1, "steps": 6}


@pytest.mark.parametrize("network", [SIZES], indirect=True)
async def test_cheating_worker__no_credit_and_the_run_goes_on(network: Network) -> None:
    for relay in network.plan.relays:
        with relay.config_file.open("a") as file:
            file.write("archive = true\n")
    await network.start_all()
    await network.start_cheat("cheat", wallet=CLAIMED)
    sent = await network.wait_for("cheat", "submission.sent", seconds=180)
    cheat = next(event["node"] for event in network.said("cheat") if event["event"] == "node.started")
    verdict = await network.wait_for("validator-1", "verdict.signed", where=lambda event: event["node"] == cheat)
    assert (verdict["outcome"], verdict["submission"][:8]) != ("accept", sent["submission"][:8])
    await network.wait_for("trainer", "run.ended", seconds=180)
    for name in ("trainer", "worker-1", "validator-1", "validator-2"):
        assert await network.children[name].wait() == 0, network.children[name].last_lines(12)
    if await network.children["cheat"].wait() != 0:  # struck before the run ended
        assert "struck this node" in " ".join(network.children["cheat"].last_lines(3))
    judged = [event for event in network.said("validator-1") if event["event"] == "verdict.signed"]
    of_cheat = [event for event in judged if event["node"] == cheat]
    assert {event["outcome"] for event in of_cheat} == {"fault"}
    honest = sum(event["tokens"] for event in judged if event["outcome"] == "accept")
    spec = network.prepared.spec
    async with await LedgerClient.connect(
        [network.prepared.rpc], contract=spec.ledger.contract, run=spec.run_id
    ) as ledger:
        roots = await ledger.final_roots()
        assert (await ledger.commits())[-1].final
        assert {held.strike.node for held in await ledger.strikes()} <= {cheat}
    async with make_http() as http:
        relay = network.plan.relays[0]
        reply = await http.get(f"http://127.0.0.1:{relay.http_port}/blobs/{roots[-1].blob}")
    leaves = open_final_tally(reply.content, roots[-1]).leaves
    assert sum(leaf.units for leaf in leaves if leaf.role == "worker") == honest > 0  # each the honest worker's
    assert cheat not in {leaf.node for leaf in leaves if leaf.role == "worker"}
    await audited(network)


async def audited(network: Network) -> None:
    """What anybody can check afterwards is correct, including a sample of the rollouts."""
    command = [*node_command("audit", str(network.prepared.join_file)), "--sample", "0.2", "--seed", "1", "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    report = json.loads(output)
    assert (process.returncode, report["holds"], report["missing"]) == (0, True, [])
    assert report["checked"]["commits"] == SIZES["steps"] + 1
    assert report["checked"]["rollouts verified anew"] > 0
