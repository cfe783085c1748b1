"""When the trainer requests more work, under a share that admits few indices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST
from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from dht.memory import FakeClock, MemoryDirectory, MemoryNetwork
from ledger.memory import MemoryLedger
from ledger.records import ValidatorSet
from roles.announce import Voice
from roles.messages import SHARE_ALL, OpenStep, Submission
from roles.observer import Observer
from roles.rules import Reason
from roles.spec import TrainingSpec
from roles.trainer.demand_control import DemandControl
from roles.trainer.heads import HeadBoard
from roles.trainer.journal import Journal
from roles.trainer.pool import Pool
from roles.worker.generation import submission_digest
from tests.builders import (
    TRAINER,
    VALIDATORS,
    WORKERS,
    MemoryRelays,
    World,
    make_chain,
    make_head,
    make_spec,
    make_submission,
    make_verdict,
    make_world,
)

NONE = 1  # a share (of 2**64) that admits nobody


class SealingAnnouncer:
    """Signs rows like the publisher, and keeps them."""

    def __init__(self, world: World) -> None:
        self.world, self.sequence = world, 10

    async def publish(
        self,
        *,
        kind: str,
        record_key: str,
        subkey: str,
        payload: bytes,
        lifetime: int,
        hint: bytes = b"",
        keep_seconds: int | None = None,
    ) -> Envelope:
        self.sequence += 10**13
        return seal(
            TRAINER,
            run=self.world.run,
            kind=kind,
            record_key=record_key,
            subkey=subkey,
            sequence=self.sequence,
            expiration=self.sequence + lifetime * 1000,
            payload=payload,
            hint=hint,
        )

    def withdraw(self, record_key: str, subkey: str) -> None: ...


class Desk:
    """DemandControl over a world in which `opened` is collected."""

    def __init__(self, folder: Path, opened: OpenStep, **training: Any) -> None:
        spec = make_spec(training=TrainingSpec(**{"initial_limit": 3, **training}))
        self.world = make_world(spec, head=make_head(open_steps=(opened,)))
        self.clock = FakeClock()
        trusted, network = self.world.trusted, MemoryNetwork(run=spec.run_id, limits={}, lifetimes={})
        observer = Observer(
            trusted=trusted,
            directory=MemoryDirectory(network),
            ledger=MemoryLedger(make_chain(spec), run=spec.run_id),
        )
        voice = Voice(SealingAnnouncer(self.world), node=TRAINER.node, spec=spec)
        self.heads = HeadBoard(term=1, trusted=trusted, observer=observer, voice=voice, journal=Journal(folder))
        self.heads.head = trusted.head
        pool = Pool(trusted=trusted, observer=observer, relays=MemoryRelays(), vocabulary=64)
        self.control = DemandControl(trusted=trusted, pool=pool, heads=self.heads, clock=self.clock)

    def hand_in(
        self, index: int = 0, predecessor: str = ZERO_DIGEST, step: int = 1, key: NodeKey = WORKERS[0]
    ) -> Submission:
        submission = make_submission(self.world, key, step=step, index=index, predecessor=predecessor)
        self.world.trusted.admit_submission(self.world.row(submission, key))
        return submission

    def judge(self, submission: Submission, **changes: object) -> None:
        for validator in VALIDATORS:
            self.world.trusted.admit_verdict(self.world.row(make_verdict(submission, **changes), validator))

    @property
    def limit(self) -> int:
        return self.world.trusted.opened[1].limit


def test_first__who_hands_in_junk_thins_out_nobody_s_work(tmp_path: Path) -> None:
    """Registering a node costs next to nothing. Counted as workers, such nodes would
    leave little to those that work."""
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=SHARE_ALL), initial_limit=100)
    desk.judge(desk.hand_in(), outcome="accept")
    alone = desk.control.first(2)
    for key in WORKERS[1:]:
        desk.judge(desk.hand_in(key=key), outcome="soft", reason=int(Reason.BLOB_MISSING))
    assert desk.control.first(2) == alone


def test_first__junk_that_is_not_judged_yet_is_not_counted_on(tmp_path: Path) -> None:
    """A relay that withholds it delays the judging."""
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=SHARE_ALL), initial_limit=100)
    desk.judge(desk.hand_in(), outcome="accept")
    alone = desk.control.first(2)
    for key in WORKERS[1:]:
        desk.hand_in(key=key)
    assert desk.control.first(2) == alone


async def test_for_more__not_before_somebody_has_used_up_the_limit(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OpenStep(step=1, limit=2, share=SHARE_ALL))
    desk.hand_in(0)
    await desk.control.for_more(1)
    assert desk.limit == 2


async def test_for_more__used_up_and_short(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=SHARE_ALL))
    desk.hand_in(0)
    await desk.control.for_more(1)
    assert desk.limit == 4  # initial_limit more


async def test_for_more__refused_by_a_quorum_of_those_who_judge_now(tmp_path: Path) -> None:
    """The owner has replaced the spec's validators by one; of the spec's a quorum was two."""
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=SHARE_ALL), batch_groups=1, min_batch=1)
    trusted = desk.world.trusted
    assert trusted.view is not None
    judges = ValidatorSet(1, trusted.view.terms.validators[:1], quorum=1, block=50)
    trusted.admit_view(replace(trusted.view, judges=judges))
    submission = desk.hand_in(0)
    await desk.control.for_more(1)
    assert desk.limit == 1  # what is handed in will do
    verdict = make_verdict(submission, outcome="fault", reason=int(Reason.WRONG_REWARD))
    trusted.admit_verdict(desk.world.row(verdict, VALIDATORS[0]))
    await desk.control.for_more(1)
    assert desk.limit > 1


async def test_for_more__who_hands_in_junk_uses_up_no_limit(tmp_path: Path) -> None:
    """Otherwise one node's junk would make the trainer ask the others for as much again."""
    desk = Desk(tmp_path, OpenStep(step=1, limit=2, share=SHARE_ALL))
    good, junk = desk.hand_in(0), desk.hand_in(0, key=WORKERS[1])
    desk.judge(good)
    desk.hand_in(1, submission_digest(junk), key=WORKERS[1])
    await desk.control.for_more(1)
    assert desk.limit == 2
    desk.hand_in(1, submission_digest(good))
    await desk.control.for_more(1)
    assert desk.limit > 2


async def test_for_more__quiet_step_whose_share_admits_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=NONE))
    await desk.control.for_more(1)
    assert desk.limit == 1
    desk.clock.advance(60)
    await desk.control.for_more(1)
    assert desk.limit > 1


@pytest.mark.parametrize("seconds", [0, 60])
async def test_for_more__quiet_with_everybody_admitted_means_no_worker(tmp_path: Path, seconds: int) -> None:
    desk = Desk(tmp_path, OpenStep(step=1, limit=1, share=SHARE_ALL))
    await desk.control.for_more(1)
    desk.clock.advance(seconds)
    await desk.control.for_more(1)
    assert desk.limit == 1


async def test_for_more__step_opened_again_after_a_lost_disk__ckpt_03(tmp_path: Path) -> None:
    """The leader had moved on to step 2 when its disk was lost. Nobody accepts a head of the same term that goes back,
    and workers are at step 2: more is requested there."""
    desk = _after_a_lost_disk(tmp_path)
    newest = desk.world.trusted.newest_commit()
    assert newest is not None
    await desk.heads.open(STEPS[0], newest=newest, state="collecting")
    desk.hand_in(0, step=2)
    await desk.control.for_more(1)
    assert (desk.world.trusted.opened[2].limit, desk.limit) == (4, 1)
    assert desk.world.trusted.head == desk.heads.head


async def test_for_more__what_a_lost_disk_had_said_is_read_late__ckpt_03(tmp_path: Path) -> None:
    desk = _after_a_lost_disk(tmp_path)
    desk.heads.head = make_head(open_steps=STEPS[:1])
    desk.hand_in(0, step=2)
    await desk.control.for_more(1)
    assert desk.world.trusted.opened[2].limit == 4
    assert desk.world.trusted.head == desk.heads.head


STEPS = tuple(OpenStep(step=step, limit=1, share=SHARE_ALL) for step in (1, 2))


def _after_a_lost_disk(folder: Path) -> Desk:
    desk = Desk(folder, STEPS[0])
    desk.world.trusted.admit_head(desk.world.row(make_head(step=2, open_steps=STEPS), TRAINER, sequence=2))
    desk.heads.head = None
    return desk
