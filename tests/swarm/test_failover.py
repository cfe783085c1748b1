"""The leader dies, is cut off, or comes back: another trainer continues, nobody believes
two, and no step is made twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dht.memory import MemoryDirectory
from roles.messages import CheckpointRow, Head, open_row
from roles.spec import TermsSpec
from roles.trainer.journal import manifest_in
from tests.builders import make_head, make_row
from tests.swarm.simulation import FAST_TRAINING, SimNode, SimulatedSwarm

TERMS = TermsSpec(lease_seconds=15, takeover_blocks=3)  # chain seconds; a block is one, and a tenth of a real one
TRAINING = FAST_TRAINING.model_copy(update={"steps": 5})
SHORT = FAST_TRAINING.model_copy(update={"steps": 3})
OPTIONS: dict[str, Any] = {"trainers": 2, "training": TRAINING, "terms": TERMS, "state_every": 1}
QUICK = {**OPTIONS, "auto": True}


def steps_by_term(swarm: SimulatedSwarm) -> dict[int, list[int]]:
    """Committed steps of each term."""
    found: dict[int, list[int]] = {}
    for commit in swarm.commits():
        found.setdefault(commit.term, []).append(commit.step)
    return found


async def groups_used(swarm: SimulatedSwarm) -> Counter[tuple[str, int]]:
    """How often each group was trained on, by the committed manifests."""
    client = swarm.client(swarm.workers[0])
    places: Counter[tuple[str, int]] = Counter()
    for commit in swarm.commits()[1:]:
        used = manifest_in(await client.fetch_manifest(commit.manifest)).used
        places.update((item.submission, number) for item in used for number in item.groups)
    return places


def check_history(swarm: SimulatedSwarm, *, steps: int) -> None:
    """Each step once, in order, and no term after a later one."""
    commits = swarm.commits()
    assert [commit.step for commit in commits] == list(range(steps + 1))
    assert [commit.term for commit in commits] == sorted(commit.term for commit in commits)
    assert commits[-1].final


async def take_over(swarm: SimulatedSwarm, by: SimNode) -> None:
    await swarm.events.wait("lease.taken_over", node_name=by.name)
    await swarm.events.wait("trainer.resumed", node_name=by.name)


async def test_leader_killed__the_stand_by_goes_on_and_the_old_one_stands_by__trn_15(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **OPTIONS) as swarm:
        leader, second = swarm.trainers
        await swarm.events.wait("state.published")
        await swarm.kill(leader)
        await take_over(swarm, second)
        rebuilt = await swarm.events.wait("trainer.rebuilt", node_name=second.name)
        assert rebuilt["optimizer"].startswith("of step")
        await swarm.start(leader)
        standing = await swarm.events.wait("trainer.standing_by", node_name=leader.name)
        assert (standing["leader"], standing["term"]) == (second.key.node, 2)
        await swarm.events.wait("run.ended", node_name=second.name)
        await swarm.events.wait("node.ended", node_name=leader.name)
        check_history(swarm, steps=5)
        assert set(steps_by_term(swarm)) == {1, 2}
        assert set((await groups_used(swarm)).values()) == {1}
        assert not swarm.events.find("verdict.signed", outcome="fault")  # nobody's honest work is called a fraud


async def test_leader_cut_off_from_the_ledger__is_fenced_and_nobody_believes_it(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **OPTIONS) as swarm:
        leader, second = swarm.trainers
        await swarm.events.wait("checkpoint.committed", step=1)
        leader.has_no_ledger = True  # it still talks to everybody: workers, validators, relays
        await take_over(swarm, second)
        taken = len(swarm.commits())
        await swarm.events.wait("step.opened", node_name=second.name)
        late = make_row(make_head(50, term=1), leader.key, spec=swarm.spec, now=swarm.network.clock() + 1000)
        await MemoryDirectory(swarm.network).publish(late)
        for node in (*swarm.workers, *swarm.validators):
            await swarm.events.wait("row.refused", node_name=node.name, kind="head/1", signer=leader.key.node)
        leader.has_no_ledger = False
        await swarm.events.wait("trainer.fenced", node_name=leader.name)
        await swarm.events.wait("trainer.standing_by", node_name=leader.name)
        await swarm.events.wait("run.ended", node_name=second.name)
        check_history(swarm, steps=5)
        assert {commit.term for commit in swarm.commits()[taken:]} == {2}
        for node in (*swarm.workers, *swarm.validators):
            assert node.trusted is not None
            assert node.trusted.head is not None
            assert node.trusted.head.term == 2


async def test_validator_cut_off_meanwhile__believes_the_new_leader_once_it_sees_the_ledger(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **OPTIONS) as swarm:
        leader, second = swarm.trainers
        lone = swarm.validators[0]
        await swarm.events.wait("checkpoint.committed", step=1)
        lone.has_no_ledger = True
        await swarm.kill(leader)
        await take_over(swarm, second)
        await swarm.events.wait("step.opened", node_name=second.name)
        assert lone.trusted is not None
        assert lone.trusted.term == 1
        assert lone.trusted.head is not None
        assert lone.trusted.head.term == 1  # the head of term 2 waits: this node cannot know yet
        lone.has_no_ledger = False
        await swarm.events.wait("run.ended", node_name=second.name)
        await swarm.events.wait("node.ended", node_name=lone.name)
        assert lone.trusted.head.term == 2


async def test_leader_without_commits__renews_and_keeps_the_lease(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **{**QUICK, "workers": 0}) as swarm:
        await swarm.events.wait("lease.renewed", node_name="trainer", count=4)
        assert not swarm.events.find("lease.lapsed")
        assert swarm.commits()[-1].step == 0


async def test_chain_down_for_longer_than_the_lease__does_not_depose_the_leader(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **QUICK) as swarm:
        await swarm.events.wait("checkpoint.committed", step=1)
        swarm.chain.is_down = True
        await swarm.events.wait("ledger.unreachable", count=4)
        swarm.chain.is_down = False
        swarm.chain.mine(seconds=10 * TERMS.lease_seconds)
        await swarm.events.wait("run.ended", node_name="trainer")
        assert set(steps_by_term(swarm)) == {1}


async def test_first_stand_by_dead_too__the_next_takes_over_a_lease_later(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **{**QUICK, "trainers": 3}) as swarm:
        leader, second, third = swarm.trainers
        await swarm.events.wait("checkpoint.committed", step=1)
        await swarm.kill(second)
        await swarm.kill(leader)
        await take_over(swarm, third)
        await swarm.events.wait("run.ended", node_name=third.name)
        check_history(swarm, steps=5)


@pytest.mark.parametrize("moment", ["lease.taken_over", "trainer.rebuilt", "step.opened"])
async def test_new_leader_killed_at_once__goes_on_in_its_own_term(tmp_path: Path, moment: str) -> None:
    async with SimulatedSwarm.open(tmp_path, **{**QUICK, "training": SHORT}) as swarm:
        leader, second = swarm.trainers
        await swarm.events.wait("checkpoint.committed", step=1)
        await swarm.kill(leader)
        await swarm.events.wait(moment, node_name=second.name)
        await swarm.kill(second)
        await swarm.start(second)
        await swarm.events.wait("run.ended", node_name=second.name)
        check_history(swarm, steps=3)
        assert set(steps_by_term(swarm)) <= {1, 2}


async def test_leader_dead_after_the_final_commit__everybody_leaves(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, **{**OPTIONS, "training": SHORT}) as swarm:
        await swarm.events.wait("checkpoint.committed", step=3, final=True)
        await swarm.kill(swarm.trainer)
        for node in (*swarm.workers, *swarm.validators, swarm.trainers[1]):
            await swarm.events.wait("node.ended", node_name=node.name)
        assert swarm.chain.model.runs[swarm.spec.run_id].events.roots[-1].total > 0


async def test_rows_of_a_fenced_leader__are_of_its_own_term_only(tmp_path: Path) -> None:
    """Over everything published in the run: heads and checkpoints name their signer's term."""
    async with SimulatedSwarm.open(tmp_path, **{**QUICK, "training": SHORT}) as swarm:
        leader, second = swarm.trainers
        await swarm.events.wait("checkpoint.committed", step=1)
        await swarm.kill(leader)
        await swarm.events.wait("run.ended", node_name=second.name)
        terms = {leader.key.node: 1, second.key.node: 2}
        for row in swarm.network.said:
            message = open_row(row, run=swarm.spec.run_id, buckets=swarm.spec.buckets)
            if isinstance(message, Head | CheckpointRow):
                assert message.term == terms[row.signer]
