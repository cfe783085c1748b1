"""A run's loop over in-memory parts: it trains, it learns, it overlaps, it ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ledger.memory import MemoryLedger
from node.audit import audit_run
from roles.inference.engine import Engine
from roles.rl.batch import TrainingGroup
from roles.rl.metrics import StepMetrics
from roles.tally import MAX_BLOB, open_final_tally
from tests.swarm.even_task import EvenTask
from tests.swarm.simulation import FAST_TRAINING, SimulatedSwarm


async def test_swarm__trains_to_the_end_and_is_tallied(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path) as swarm:
        await swarm.events.wait("run.ended")
        await swarm.events.wait("node.ended", node_name="trainer")
        commits = swarm.commits()
        assert [commit.step for commit in commits] == [0, 1, 2, 3, 4]
        assert [commit.final for commit in commits] == [False, False, False, False, True]
        assert not swarm.events.find("submission.refused")
        await swarm.events.wait("tally.finalised")
        await audited(swarm, tmp_path / "audit")


async def audited(swarm: SimulatedSwarm, folder: Path) -> None:
    """Everybody is credited, and anybody can recount it from ledger and relays."""
    ledger = MemoryLedger(swarm.chain, run=swarm.spec.run_id)
    client = swarm.client(swarm.workers[0])
    report = await audit_run(swarm.spec, ledger=ledger, relays=client, home=folder)
    assert not report.missing
    (root,) = await ledger.final_roots()
    units: Counter[str] = Counter()
    for leaf in open_final_tally(await client.get(root.blob, limit=MAX_BLOB), root).leaves:
        units[leaf.role] += leaf.units
    said = [row for row in swarm.events.find("verdict.signed") if row["outcome"] == "accept"]
    accepted = {row["submission"]: row["tokens"] for row in said}
    assert (units["worker"], units["trainer"]) == (sum(accepted.values()), 4)
    assert 2 * len(accepted) <= units["validator"] <= len(said)
    assert units["relay"] > 0


async def test_swarm__reward_rises(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"steps": 12, "learning_rate": "0.01", "batch_groups": 6})
    async with SimulatedSwarm.open(tmp_path, training=training, auto=True, validators=1) as swarm:
        await swarm.events.wait("run.ended")
        rewards = [row["reward"] for row in swarm.events.find("batch.closed")]
        assert len(rewards) == 12
        assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.15


class HeldLearner:
    """A learner whose first update does not return until it is released."""

    def __init__(self, learner: Any, let_go: threading.Event) -> None:
        self._learner, self._let_go = learner, let_go

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        assert self._let_go.wait(60)
        metrics: StepMetrics = self._learner.step(groups, step)
        return metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


class OffTheLoop:
    """Records the model work requested, and whether it ran in the event loop's own thread."""

    def __init__(self, inner: Any, asked: set[tuple[str, bool]]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._asked.add((name, threading.current_thread() is threading.main_thread()))
            return value(*args, **kwargs)

        return noted


async def test_swarm__no_model_work_in_the_event_loop__dht_25(tmp_path: Path) -> None:
    asked = set[tuple[str, bool]]()

    def prepare(swarm: SimulatedSwarm) -> None:
        for node in (*swarm.workers, *swarm.validators):
            node.engine = lambda engine: cast(Engine, OffTheLoop(engine, asked))

    training, learner = FAST_TRAINING.model_copy(update={"steps": 2}), lambda inner: OffTheLoop(inner, asked)
    async with SimulatedSwarm.open(tmp_path, training=training, prepare=prepare, learner=learner) as swarm:
        await swarm.events.wait("run.ended")
    assert {"load", "generate", "prefill", "step", "save_weights", "save_state"} <= {name for name, _ in asked}
    assert not [name for name, in_loop in asked if in_loop]


async def test_async_level__rollouts_of_the_next_step_before_the_update_is_done__ckpt_07(tmp_path: Path) -> None:
    let_go = threading.Event()
    async with SimulatedSwarm.open(tmp_path, auto=True, learner=lambda inner: HeldLearner(inner, let_go)) as swarm:
        try:
            sent = await swarm.events.wait("submission.sent", step=2)
            assert sent["policy_step"] == 0
            assert not swarm.events.find("step.trained")
        finally:
            let_go.set()
        await swarm.events.wait("run.ended")
        assert [commit.step for commit in swarm.commits()] == [0, 1, 2, 3, 4]


async def test_trainer__makes_the_next_steps_while_a_checkpoint_is_still_to_be_sent(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, auto=True, workers=1, validators=1) as swarm:
        await swarm.events.wait("checkpoint.committed", step=0)
        for faults in swarm.relay_faults.values():
            faults.takes_no_weights = True
        await swarm.events.wait("step.trained", step=2)  # as many may be under way
        await swarm.events.wait("trainer.waiting", why="checkpoint 1 is not committed yet")
        assert not swarm.events.find("checkpoint.published", step=1)


async def test_worker__uploads_while_it_samples_the_next_index(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, auto=True, workers=1) as swarm:
        await swarm.events.wait("weights.loaded")
        for faults in swarm.relay_faults.values():
            faults.is_down = True
        await swarm.events.wait("submission.made", count=2)  # the first has no relay to go to
        unsent = len(swarm.events.find("submission.sent"))
        assert unsent < len(swarm.events.find("submission.made"))
        for faults in swarm.relay_faults.values():
            faults.is_down = False
        await swarm.events.wait("run.ended")


async def test_saturation__ends_the_run_well(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"max_groups": 6, "saturated_rounds": 2})
    async with SimulatedSwarm.open(tmp_path, task=EvenTask(never=True), training=training, auto=True) as swarm:
        await swarm.events.wait("run.ended")
        commits = swarm.commits()
        assert [(commit.step, commit.final) for commit in commits] == [(0, False), (1, False), (2, True)]
        weights = {(tmp_path / "trainer/state/checkpoints" / str(s) / "model.safetensors").read_bytes() for s in (1, 2)}
        assert len(weights) == 1
        assert [row["rounds"] for row in swarm.events.find("run.saturated")] == [1, 2]
        assert [row["dropped"] for row in swarm.events.find("batch.closed")] == [6, 6]


async def test_async_level_0__every_step_uses_the_checkpoint_before_it(tmp_path: Path) -> None:
    training = FAST_TRAINING.model_copy(update={"async_level": 0, "steps": 3})
    async with SimulatedSwarm.open(tmp_path, training=training, auto=True) as swarm:
        await swarm.events.wait("run.ended")
        sent = swarm.events.find("submission.sent")
        assert {row["step"] for row in sent} == {1, 2, 3}
        assert all(row["policy_step"] == row["step"] - 1 for row in sent)


async def test_worker__samples_with_old_weights_while_new_ones_are_fetched(tmp_path: Path) -> None:
    async with SimulatedSwarm.open(tmp_path, auto=True) as swarm:
        for worker in swarm.workers:
            await swarm.events.wait("weights.loaded", node_name=worker.name)
        for faults in swarm.relay_faults.values():
            faults.withholds_weights = True
        sent = await swarm.events.wait("submission.sent", step=3)  # checkpoint 0 may be used up to step 3
        assert sent["policy_step"] == 0
        await swarm.events.wait("worker.waiting", why="weights of checkpoint 1 to 3 are being fetched")
        assert not swarm.events.find("submission.sent", step=4)
        for faults in swarm.relay_faults.values():
            faults.withholds_weights = False
        await swarm.events.wait("run.ended")
