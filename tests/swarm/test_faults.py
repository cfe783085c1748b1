"""Each source of truth fails in turn (DHT, relays, ledger, disk), and so do nodes. The run goes on."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from roles.inference.engine import Completion, Engine, Request, SamplingSettings
from roles.messages import Submission, open_row
from tests.swarm.simulation import FAST_TRAINING, SimulatedSwarm

SHORT = FAST_TRAINING.model_copy(update={"steps": 3})


async def test_dht__rows_lost_and_out_of_order(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        for node in (swarm.trainer, *swarm.workers, *swarm.validators):
            node.faults.drop_rate, node.faults.reorder = 0.2, True
        await swarm.events.wait("run.ended")


async def test_dht__rows_come_late(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        for node in (swarm.trainer, *swarm.workers, *swarm.validators):
            node.faults.delay_ms, node.faults.reorder = 150, True
        await swarm.events.wait("run.ended")


async def test_dht__down_for_a_while(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait("submission.sent")
        nodes = (swarm.trainer, *swarm.workers, *swarm.validators)
        for node in nodes:
            node.faults.is_down = True
        await swarm.events.wait("directory.unreachable", count=len(nodes))
        for node in nodes:
            node.faults.is_down = False
        await swarm.events.wait("run.ended")


async def test_dht__eclipsed_all_the_time__boards_carry_the_run(tmp_path: Path) -> None:
    def eclipse(swarm: SimulatedSwarm) -> None:
        for node in (swarm.trainer, *swarm.workers, *swarm.validators):
            node.faults.drop_rate = 1.0  # it answers, and knows nothing

    async with SimulatedSwarm.open(tmp_path, training=SHORT, boards=True, prepare=eclipse) as swarm:
        await swarm.events.wait("run.ended")
        assert len(swarm.commits()) == SHORT.steps + 1


async def test_relay__dead_one_is_routed_around(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        swarm.relay_faults["relay0"].is_down = True
        await swarm.events.wait("run.ended")
        assert {row["relays"] for row in swarm.events.find("submission.sent")} == {1}


async def test_relay__wrong_bytes_are_fetched_elsewhere(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        swarm.relay_faults["relay1"].serves_wrong_bytes = True
        await swarm.events.wait("run.ended")
        assert swarm.events.find("relay.dropped")
        assert not swarm.events.find("submission.refused")


async def test_relays__all_dead_for_a_while__live_01(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait("step.opened", step=2)
        for faults in swarm.relay_faults.values():
            faults.is_down = True
        await swarm.events.wait("copy.failed" if swarm.events.find("copy.failed") else "manifest.refused")
        for faults in swarm.relay_faults.values():
            faults.is_down = False
        await swarm.events.wait("run.ended")


async def test_relays__that_serve_only_their_uploader_cost_nobody_credit(tmp_path: Path) -> None:
    """Both relays that the first uploads go to accept them and serve them to the worker, but not to validators."""
    async with SimulatedSwarm.open(tmp_path, relays=3, training=SHORT, prepare=_two_faced_relays) as swarm:
        await swarm.events.wait("submission.sent")
        swarm.relay_faults["relay2"].is_down = False
        again = await swarm.events.wait("submission.sent_again")
        assert again["why"] == "validators do not find its blob"
        await swarm.events.wait("submission.accepted", submission=again["submission"])
        await swarm.events.wait("run.ended")
        assert not swarm.events.find("submission.refused")


def _two_faced_relays(swarm: SimulatedSwarm) -> None:
    for name in ("relay0", "relay1"):
        swarm.relay_faults[name].serves_uploaders_only = True
    swarm.relay_faults["relay2"].is_down = True


async def test_ledger__down_for_a_while(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait("batch.closed", step=1)  # not before: the workers' blocks have to be known
        swarm.chain.is_down = True
        await swarm.events.wait("checkpoint.uncommitted", step=1)
        swarm.chain.is_down = False
        await swarm.events.wait("run.ended")
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3]


async def test_ledger__reorganised_commits_are_made_again(tmp_path: Path) -> None:
    """The chain loses two checkpoints; they are committed again, as they were, before the next."""
    async with SimulatedSwarm.open(tmp_path, auto=True) as swarm:
        await swarm.events.wait("checkpoint.committed", step=0)
        past = swarm.moment()
        await swarm.events.wait("checkpoint.committed", step=2)
        lost = [commit.manifest for commit in swarm.commits()][1:]
        swarm.reorganise(past)
        await swarm.events.wait("checkpoint.undone", step=1)
        await swarm.events.wait("run.ended")
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3, 4]
        assert [commit.manifest for commit in swarm.commits()][1 : 1 + len(lost)] == lost


async def test_ledger__some_nodes_see_blocks_late(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT, prepare=_late_views) as swarm:
        await swarm.events.wait("run.ended")


def _late_views(swarm: SimulatedSwarm) -> None:
    swarm.workers[0].lag, swarm.validators[1].lag, swarm.trainer.lag = 3, 5, 2


@pytest.mark.parametrize("moment", ["batch.closed", "step.trained", "checkpoint.published"])
async def test_trainer_killed__goes_on_with_the_same_checkpoints(tmp_path: Path, moment: str) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait(moment, step=1)
        await swarm.kill(swarm.trainer)
        await swarm.start(swarm.trainer)
        await swarm.events.wait("run.ended")
        made = defaultdict(set)
        for row in swarm.events.find("checkpoint.published"):
            made[row["step"]].add(row["manifest"])
        assert {step: len(manifests) for step, manifests in made.items()} == {0: 1, 1: 1, 2: 1, 3: 1}
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3]
        assert len(swarm.events.find("batch.closed", step=1)) == 1


@pytest.mark.parametrize(("moment", "fields"), [("state.published", {}), ("step.opened", {"step": 3})])
async def test_trainer_with_a_lost_disk__rebuilds_from_ledger_and_relays__ckpt_03(  # CKPT-03
    tmp_path: Path, moment: str, fields: dict[str, int]
) -> None:
    """The leader also loses two steps beyond the last checkpoint that others have; workers have left the
    step that is collected again."""
    async with SimulatedSwarm.open(tmp_path, state_every=1) as swarm:
        await swarm.events.wait("state.published")
        await swarm.events.wait(moment, **fields)
        await swarm.kill(swarm.trainer)
        swarm.wipe(swarm.trainer)
        await swarm.start(swarm.trainer)
        rebuilt = await swarm.events.wait("trainer.rebuilt")
        assert rebuilt["optimizer"].startswith("of step")
        await swarm.events.wait("run.ended")
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3, 4]
        assert not swarm.events.find("node.stopped")


async def test_trainer_with_a_lost_disk__waits_for_relays_and_never_starts_anew__ckpt_03(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait("checkpoint.committed", step=1)
        await swarm.kill(swarm.trainer)
        swarm.wipe(swarm.trainer)
        for faults in swarm.relay_faults.values():
            faults.is_down = True
        count = len(swarm.commits())
        await swarm.start(swarm.trainer)
        await swarm.events.wait("weights.unreachable", node_name="trainer", policy_step=count - 1)
        assert len(swarm.commits()) == count
        for faults in swarm.relay_faults.values():
            faults.is_down = False
        await swarm.events.wait("optimizer.fresh", step=count - 1)  # no state was sealed so early: said, not hidden
        await swarm.events.wait("run.ended")
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3]


@pytest.mark.parametrize("wiped", [False, True])
async def test_worker_killed__never_says_two_things_of_one_index(tmp_path: Path, wiped: bool) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        worker = swarm.workers[0]
        for count in (1, 3):
            await swarm.events.wait("submission.sent", node_name=worker.name, count=count)
            await swarm.kill(worker)
            if wiped:
                swarm.wipe(worker)
            await swarm.start(worker)
        await swarm.events.wait("run.ended")
        said = _submissions_by_index(swarm)
        assert {len(digests) for place, digests in said.items() if place[0] == worker.key.node} == {1}
        assert all(node.trusted.equivocations(worker.key.node) == 0 for node in swarm.validators if node.trusted)


def _submissions_by_index(swarm: SimulatedSwarm) -> dict[tuple[str, int, int], set[str]]:
    said: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for row in swarm.network.said:
        message = open_row(row, run=swarm.spec.run_id, buckets=swarm.spec.buckets)
        if isinstance(message, Submission):
            said[message.node, message.step, message.index].add(row.digest)
    return said


async def test_validator_killed__quorum_of_the_others_is_enough(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.kill(swarm.validators[0])
        await swarm.events.wait("run.ended")


async def test_all_workers_killed__goes_on_with_new_ones(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        await swarm.events.wait("submission.sent")
        for worker in list(swarm.workers):
            await swarm.kill(worker)
        await swarm.add_worker()
        await swarm.events.wait("run.ended")


async def test_late_worker__catches_up__ckpt_09(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path) as swarm:
        await swarm.events.wait("checkpoint.committed", step=2)
        worker = await swarm.add_worker()
        sent = await swarm.events.wait("submission.sent", node_name=worker.name)
        assert sent["policy_step"] >= 1
        await swarm.events.wait("submission.accepted", node_name=worker.name)


class ForgingEngine:
    """Outputs whatever is cheap: the same token repeatedly, with states that no model made."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def generate(self, requests: list[Request], settings: SamplingSettings) -> list[Completion]:
        honest = self._inner.generate(requests[:1], settings)[0]
        width = honest.states.shape[1]
        tokens = (3,) * settings.max_tokens
        return [
            Completion(tokens, "length", (-0.5,) * len(tokens), honest.states.new_ones(len(tokens), width))
            for _ in requests
        ]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def test_cheating_worker__gets_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        cheat = await swarm.add_worker(engine=ForgingEngine)  # type: ignore[arg-type]
        await swarm.events.wait("submission.refused", node_name=cheat.name)
        await swarm.events.wait("run.ended")
        assert not swarm.events.find("submission.accepted", node_name=cheat.name)
        trained = {group.submission for batch in swarm.batches() for group in batch.groups}
        sent = {row["submission"] for row in swarm.events.find("submission.sent", node_name=cheat.name)}
        assert sent
        assert not trained & sent


async def test_disk_full__worker_says_so_and_others_go_on(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, training=SHORT) as swarm:
        worker = swarm.workers[0]
        await swarm.kill(worker)
        (worker.folder / "submissions" / "1").parent.mkdir(exist_ok=True)
        for step in (1, 2, 3):
            (worker.folder / "submissions" / str(step)).write_text("in the way")  # root ignores modes
        await swarm.start(worker)
        stopped = await swarm.events.wait("node.stopped", node_name=worker.name)
        assert "the worker's folder cannot be used" in stopped["why"]
        await swarm.events.wait("run.ended")
