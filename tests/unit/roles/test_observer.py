"""The observer: passes rows to the gate in an order that admits them, keeps those that must wait,
survives every failing source."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import structlog.testing

from dht.envelope import Envelope
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import unix_ms
from ledger.memory import MemoryChain, MemoryLedger
from roles.messages import ROW_RULES, SHARE_ALL, OpenStep, Submission
from roles.observer import BURIED_BLOCKS, Observer
from roles.pending_rows import MAX_OF_SIGNER
from roles.rules import Reason, Reject
from roles.trusted import TrustedState
from roles.worker.generation import submission_digest
from tests.builders import (
    STRANGER,
    TRAINER,
    TRAINER_OPERATOR,
    VALIDATORS,
    WALLETS,
    WORKERS,
    World,
    make_chain,
    make_head,
    make_registration,
    make_row,
    make_spec,
    make_submission,
    make_verdict,
    make_world,
    manifest_of,
    register_workers,
)

WIDE = (OpenStep(step=1, limit=10_000, share=SHARE_ALL),)


@dataclass
class Scene:
    """An observer over a directory and a chain."""

    world: World
    chain: MemoryChain
    directory: MemoryDirectory
    observer: Observer
    rejected: list[tuple[Envelope, Reject]]

    @property
    def trusted(self) -> TrustedState:
        return self.observer.trusted

    async def put(self, *rows: Envelope) -> None:
        """Put a row into the directory."""
        for row in rows:
            await self.directory.publish(row)

    def submission_row(self, submission: Submission, **changes: object) -> Envelope:
        """Signed by the first worker, now."""
        return make_row(submission, WORKERS[0], spec=self.world.spec, now=unix_ms(), **changes)


@pytest.fixture
async def scene() -> Scene:
    spec = make_spec()
    chain = make_chain(spec)
    await register_workers(chain, spec)
    ledger = MemoryLedger(chain, run=spec.run_id, operator_key=TRAINER_OPERATOR)
    await ledger.commit_checkpoint(term=1, step=0, manifest=manifest_of(0), parent="00" * 32, final=False)
    limits = {kind: rule.max_bytes for kind, rule in ROW_RULES.items()}
    lifetimes = {kind: rule.lifetime for kind, rule in ROW_RULES.items()}
    directory = MemoryDirectory(MemoryNetwork(run=spec.run_id, limits=limits, lifetimes=lifetimes))
    rejected: list[tuple[Envelope, Reject]] = []
    observer = Observer(trusted=TrustedState(spec), directory=directory, ledger=ledger)
    observer.listen(lambda row, error: rejected.append((row, error)))
    scene = Scene(make_world(spec), chain, directory, observer, rejected)
    await scene.put(make_row(make_head(), TRAINER, spec=spec, now=unix_ms()))
    await observer.look()
    return scene


async def test_look__takes_over_ledger_and_head(scene: Scene) -> None:
    assert scene.trusted.head == make_head()
    assert scene.trusted.committed(0) == manifest_of(0)
    assert set(scene.trusted.view.beacons if scene.trusted.view else ()) == {key.node for key in WORKERS}


async def test_look__successor_and_verdict_found_before_their_predecessor(scene: Scene) -> None:
    first = make_submission(scene.world)
    second = make_submission(scene.world, index=1, predecessor=submission_digest(first))
    verdict = make_row(make_verdict(second), VALIDATORS[0], spec=scene.world.spec, now=unix_ms())
    await scene.put(scene.submission_row(second), verdict)
    await scene.observer.look()
    assert not scene.trusted.submissions
    assert scene.observer.ignored[Reason.GAP] == 1
    await scene.put(scene.submission_row(first))
    await scene.observer.look()
    assert set(scene.trusted.submissions) == {submission_digest(first), submission_digest(second)}


async def test_look__a_flood_that_never_becomes_valid_costs_only_the_flooder(scene: Scene) -> None:
    """Hundreds of rows with a gap before them, republished repeatedly: they neither pile up nor delay others."""
    await scene.put(make_row(make_head(open_steps=WIDE), TRAINER, spec=scene.world.spec, now=unix_ms()))
    spec = scene.world.spec
    for again in range(2):
        for index in range(1, 2 * MAX_OF_SIGNER):
            gap = make_submission(scene.world, WORKERS[1], index=index, predecessor="ab" * 32)
            await scene.put(make_row(gap, WORKERS[1], spec=spec, now=unix_ms() + again * 1000 + index))
        await scene.observer.look()
    assert len(scene.observer.pending) == MAX_OF_SIGNER
    assert scene.observer.ignored == {Reason.GAP: 2 * MAX_OF_SIGNER}
    honest = make_submission(scene.world)
    await scene.put(scene.submission_row(honest))
    await scene.observer.look()
    assert set(scene.trusted.submissions) == {submission_digest(honest)}


async def test_look__of_many_rows_that_wait_a_look_takes_some_in_turns(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of rows waiting behind gaps, from a few registered keys, would each take time at every look. Rows that
    wait behind them get their turn all the same."""
    monkeypatch.setattr("roles.pending_rows.MAX_AGAIN", 3)
    await scene.put(make_row(make_head(open_steps=WIDE), TRAINER, spec=scene.world.spec, now=unix_ms()))
    spec, first = scene.world.spec, make_submission(scene.world)
    second = make_submission(scene.world, index=1, predecessor=submission_digest(first))
    for index in range(1, 10):
        gap = make_submission(scene.world, WORKERS[1], index=index, predecessor="ab" * 32)
        await scene.put(make_row(gap, WORKERS[1], spec=spec, now=unix_ms()))
    await scene.observer.look()
    await scene.put(scene.submission_row(second))
    await scene.observer.look()
    assert len(scene.observer.pending) == 10
    before = scene.observer.ignored[Reason.GAP]
    await scene.observer.look()
    assert scene.observer.ignored[Reason.GAP] - before == 3
    await scene.put(scene.submission_row(first))
    for _ in range(4):
        await scene.observer.look()
    assert len(scene.trusted.submissions) == 2


async def test_look__what_waits_for_a_step_that_is_over_is_forgotten(scene: Scene) -> None:
    gap = make_submission(scene.world, index=1, predecessor="ab" * 32)
    await scene.put(scene.submission_row(gap))
    await scene.observer.look()
    assert len(scene.observer.pending) == 1
    await scene.put(make_row(make_head(9), TRAINER, spec=scene.world.spec, now=unix_ms()))
    await scene.observer.look()  # sees the head
    await scene.observer.look()  # reads its window
    assert len(scene.observer.pending) == 0


async def test_look__beacon_follows_a_chain_that_was_re_organised__chain_fork(scene: Scene) -> None:
    """A validator that kept the hash of an orphaned block would find every honest submission of the node at fault."""
    node = WORKERS[0].node
    assert scene.trusted.view is not None
    number = scene.trusted.view.registrations[node].first_block + scene.world.spec.epoch.beacon_blocks
    before, seed = scene.trusted.view.beacons[node], scene.trusted.seed_of(node, 1, 0)
    block = scene.chain.blocks[number]
    scene.chain.blocks[number] = replace(block, hash="ee" * 32)
    scene.chain.mine()
    await scene.observer.look()
    assert scene.trusted.view.beacons[node] == "ee" * 32 != before
    assert scene.trusted.seed_of(node, 1, 0) != seed


async def test_look__gate_fault_is_told_once_and_changes_nothing(scene: Scene) -> None:
    await scene.put(scene.submission_row(make_submission(scene.world, policy=manifest_of(5))))
    await scene.observer.look()
    await scene.observer.look()
    assert [error.reason for _, error in scene.rejected] == [Reason.WRONG_POLICY]
    assert not scene.trusted.submissions


async def test_look__verdict_of_a_stranger_counts_for_nothing(scene: Scene) -> None:
    submission = make_submission(scene.world)
    forged = make_row(make_verdict(submission), STRANGER, spec=scene.world.spec, now=unix_ms())
    await scene.put(scene.submission_row(submission), forged)
    await scene.observer.look()
    assert not scene.trusted.standings


async def test_look__outages_are_remembered_and_end(scene: Scene) -> None:
    scene.chain.is_down = scene.directory.faults.is_down = True
    await scene.observer.look()
    assert scene.observer.ledger_down
    assert scene.observer.directory_down
    assert scene.trusted.head == make_head()
    scene.chain.is_down = scene.directory.faults.is_down = False
    await scene.observer.look()
    assert scene.observer.ledger_down is None
    assert scene.observer.directory_down is None


async def test_read_rows__nothing_while_the_directory_is_down(scene: Scene) -> None:
    scene.directory.faults.is_down = True
    assert await scene.observer.read_rows([f"{scene.world.run}/tally/0"]) == []


async def test_watch__two_waiters_each_see_every_change(scene: Scene) -> None:
    first, second = scene.observer.watch(), scene.observer.watch()
    await first.changed()
    await second.changed()
    scene.observer.wake()
    await first.changed(timeout=0.5)
    await second.changed(timeout=0.5)
    assert scene.observer.version > 0


async def test_look__beacon_is_unknown_until_its_block_lies_deep_enough__chain_fork(scene: Scene) -> None:
    """The last blocks of a chain are re-organised now and then, so nobody samples or judges by their hashes."""
    ledger = MemoryLedger(scene.chain, run=scene.world.spec.run_id, operator_key=TRAINER_OPERATOR)
    await ledger.register(make_registration(ledger, scene.world.spec, STRANGER, WALLETS[0]))
    scene.chain.mine(scene.world.spec.epoch.beacon_blocks + BURIED_BLOCKS - 1)
    await scene.observer.look()
    assert STRANGER.node in (scene.trusted.view.registrations if scene.trusted.view else ())
    assert scene.trusted.seed_of(STRANGER.node, 1, 0) is None
    scene.chain.mine()
    await scene.observer.look()
    assert scene.trusted.seed_of(STRANGER.node, 1, 0) is not None


async def test_look__without_the_ledger_the_last_term_is_believed_for_a_while_and_that_is_said(scene: Scene) -> None:
    now = [0.0]
    observer = Observer(
        trusted=scene.trusted,
        directory=scene.directory,
        ledger=MemoryLedger(scene.chain, run=scene.world.run),
        monotonic=lambda: now[0],
    )
    await observer.look()
    scene.chain.is_down = True
    with structlog.testing.capture_logs() as logs:
        for now[0], step in ((500.0, 2), (700.0, 3), (3700.0, 4)):
            await scene.put(make_row(make_head(step), TRAINER, spec=scene.world.spec, now=unix_ms() + step))
            await observer.look()
            await observer.look()
    assert [line["seconds"] for line in logs if line["event"] == "term.assumed"] == [700]  # once, after a lease
    assert scene.trusted.head == make_head(3)  # an hour is too long: nobody knows who leads
    scene.chain.is_down = False
    scene.chain.mine()
    await observer.look()
    assert scene.trusted.head == make_head(4)
