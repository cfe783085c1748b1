"""A run under attack: liars, silence, deaths, a fenced leader, a chain that stops and re-organises. It ends, and the
amounts owed are exactly those of an independent count of the blobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dht.encoding import decode
from ledger.memory import MemoryLedger
from ledger.merkle import merkle_root
from roles.messages import Submission, Verdict
from roles.tally import open_final_tally
from roles.tally.body import plain_leaves
from tests.recount import recount
from tests.swarm.simulation import FAST_TRAINING, SimNode, SimulatedSwarm
from tests.swarm.test_failover import TERMS, check_history
from tests.swarm.test_faults import ForgingEngine
from tests.testnet.lying_validator import make_lie

TRAINING = FAST_TRAINING.model_copy(update={"steps": 8})


def prepare(swarm: SimulatedSwarm) -> None:
    swarm.validators[0].checks = (make_lie(seed=5),)


def accepted_by_all_that_was_said(swarm: SimulatedSwarm) -> Counter[str]:
    """Tokens by worker over every submission that a quorum accepts and whose faults a quorum of audits answers, from
    all rows ever published in this network."""
    submissions: dict[str, Submission] = {}
    newest: dict[tuple[str, str], tuple[int, Verdict]] = {}
    for row in swarm.network.said:
        if row.kind == "submission/1":
            submissions[row.digest] = decode(Submission, row.payload)
        elif row.kind == "verdict/2":
            verdict = decode(Verdict, row.payload)
            place = verdict.submission, row.signer
            newest[place] = max(newest.get(place, (-1, verdict)), (row.sequence, verdict), key=lambda item: item[0])
    accepts: Counter[str] = Counter(digest for (digest, _), (_, v) in newest.items() if v.outcome == "accept")
    tokens: Counter[str] = Counter()
    for digest, count in accepts.items():
        if count >= swarm.spec.quorum:
            tokens[submissions[digest].node] += submissions[digest].tokens
    return tokens


async def fence(swarm: SimulatedSwarm, leader: SimNode, by: SimNode) -> None:
    """Cut the leader off from its ledger until the other leads; then reconnect it, and it must give way."""
    leader.has_no_ledger = True
    await swarm.events.wait("trainer.resumed", node_name=by.name)
    leader.has_no_ledger = False
    await swarm.events.wait("trainer.standing_by", node_name=leader.name)


async def stop_and_reorganise_chain(swarm: SimulatedSwarm) -> None:
    """Make the chain unreachable for a while (ten blocks' time), then replace its last blocks."""
    past, count = swarm.moment(), len(swarm.commits())
    await swarm.events.wait("checkpoint.committed", step=count)
    swarm.chain.is_down = True
    await swarm.events.wait("ledger.unreachable", node_name=swarm.trainers[1].name)
    swarm.reorganise(past)
    swarm.chain.is_down = False


async def test_hostile_run__ends_and_contributions_equal_an_independent_count(tmp_path: Path) -> None:
    options = {"trainers": 2, "validators": 7, "training": TRAINING, "terms": TERMS, "prepare": prepare}
    async with SimulatedSwarm.open(tmp_path, **options) as swarm:
        silent, (leader, second) = swarm.validators[1], swarm.trainers
        await swarm.kill(silent)
        cheat = await swarm.add_worker(engine=ForgingEngine)  # type: ignore[arg-type]
        await swarm.events.wait("checkpoint.committed", step=1)
        await fence(swarm, leader, second)
        proposed = await swarm.events.wait("tally.proposed")
        proposer = next(node for node in swarm.validators if node.name == proposed["node_name"])
        await swarm.kill(proposer)
        await stop_and_reorganise_chain(swarm)
        await swarm.events.wait("run.ended", node_name=second.name)
        honest = [node for node in swarm.validators[1:] if node not in (silent, proposer)]
        for node in (*swarm.workers[:2], *honest):
            await swarm.events.wait("node.ended", node_name=node.name)

        check_history(swarm, steps=8)
        assert {commit.term for commit in swarm.commits()} == {1, 2}
        ledger = MemoryLedger(swarm.chain, run=swarm.spec.run_id)
        client, roots = swarm.client(swarm.workers[0]), await ledger.final_roots()

        async def fetch(digest: str) -> bytes:
            return await client.get(digest, limit=2**25)

        counted, leaves = await recount(swarm.spec, roots, fetch)
        assert counted == leaves == accepted_by_all_that_was_said(swarm)
        assert cheat.key.node not in counted
        last = open_final_tally(await fetch(roots[-1].blob), roots[-1])
        assert merkle_root(plain_leaves(last.leaves)) == roots[-1].root
