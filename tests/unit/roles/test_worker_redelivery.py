"""Blobs that validators do not find are uploaded to other relays: how often, when, and that the row then names them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dht.encoding import sha256
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import Publisher
from ledger.memory import MemoryLedger
from roles.announce import Voice
from roles.messages import ROW_RULES
from roles.observer import Observer
from roles.rules import Reason
from roles.shardcast.grants import hint_of
from roles.worker.courier import Courier
from roles.worker.generation import Made, submission_digest
from roles.worker.redelivery import LOOK_AGAIN_SECONDS, SILENCE_SECONDS, TRIES, Redelivery
from roles.worker.reports import Reports
from roles.worker.submission_store import SubmissionStore
from tests.builders import NOW, VALIDATORS, WORKERS, MemoryRelays, make_chain, make_submission, make_verdict, make_world

BLOB = b"rollouts"
RELAYS = tuple(f"12D3KooWrelay{number}" for number in range(4))


class Places(MemoryRelays):
    """Accepts a blob at the first relays in order that are not to be tried last."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_last: list[set[str]] = []

    async def put(self, data: bytes, *, last: Any = ()) -> tuple[str, ...]:
        await super().put(data)
        self.asked_last.append(set(last))
        return tuple(sorted(RELAYS, key=lambda relay: (relay in last, relay)))[:2]


class Scene:
    """One submission that was sent to the first two relays."""

    def __init__(self, folder: Path) -> None:
        self.world = make_world()
        spec = self.world.spec
        submission = make_submission(self.world, blob=sha256(BLOB), size=len(BLOB))
        made = Made(submission, submission_digest(submission), BLOB, 0.5)
        self.submission, self.digest = submission, made.digest
        self.sequences = count(NOW)
        self.now, self.relays, self.store = 0.0, Places(), SubmissionStore(folder)
        self.store.save(made)
        network = MemoryNetwork(
            run=spec.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
        )
        directory = MemoryDirectory(network)
        ledger = MemoryLedger(make_chain(spec), run=spec.run_id)
        trusted = self.world.trusted
        observer = Observer(trusted=trusted, directory=directory, ledger=ledger)
        publisher = Publisher(WORKERS[0], directory, run=spec.run_id, state=None)
        voice = Voice(publisher, node=WORKERS[0].node, spec=spec)
        trusted.admit_submission(self.world.row(submission, WORKERS[0], hint=hint_of(RELAYS[:2])))
        self.reports = Reports(trusted)
        self.reports.expect(self.digest, submission)
        self.redelivery = Redelivery(
            trusted=trusted,
            observer=observer,
            courier=Courier(observer=observer, voice=voice, relays=self.relays, store=self.store),
            reports=self.reports,
            store=self.store,
            clock=lambda: self.now,
        )
        self.redelivery.note(submission, self.digest, RELAYS[:2])

    def judge(self, *outcomes: str) -> None:
        """Verdicts of the first validators: acceptances, or that the blob is missing."""
        for key, outcome in zip(VALIDATORS, outcomes, strict=False):
            reason = Reason.ACCEPTED if outcome == "accept" else Reason.BLOB_MISSING
            verdict = make_verdict(self.submission, outcome=outcome, reason=int(reason), audited=outcome == "accept")
            self.world.trusted.admit_verdict(self.world.row(verdict, key, sequence=next(self.sequences)))
        self.reports.tell()

    async def turns(self, times: Sequence[float]) -> int:
        """Turns at these times; how many deliveries there were."""
        before = len(self.relays.asked_last)
        for self.now in times:
            await self.redelivery.turn()
        return len(self.relays.asked_last) - before


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_turn__missing_blob_goes_to_other_relays_and_the_row_says_so(scene: Scene) -> None:
    scene.judge("soft")
    assert await scene.turns([1.0]) == 1
    assert scene.world.trusted.submissions[scene.digest].relays == RELAYS[2:]
    assert [item.relays for item in scene.store.load()] == [RELAYS[2:]]


async def test_turn__relays_where_a_quorum_missed_it_are_asked_last_by_the_next(scene: Scene) -> None:
    scene.judge("soft", "soft")
    await scene.turns([1.0])
    assert await scene.redelivery._courier.upload(scene.submission, b"another") == RELAYS[2:]


async def test_turn__silence_is_waited_out_then_answered(scene: Scene) -> None:
    assert await scene.turns([1.0, SILENCE_SECONDS - 1]) == 0
    assert await scene.turns([SILENCE_SECONDS]) == 1


async def test_turn__after_a_delivery_validators_get_time_to_look(scene: Scene) -> None:
    scene.judge("soft")
    assert await scene.turns([1.0, 2.0, LOOK_AGAIN_SECONDS]) == 1
    assert await scene.turns([1.0 + 2 * LOOK_AGAIN_SECONDS]) == 1


async def test_turn__not_for_ever(scene: Scene) -> None:
    scene.judge("soft", "soft", "soft")
    assert await scene.turns([1e4 * turn for turn in range(1, 50)]) == TRIES


async def test_turn__nothing_once_accepted_or_while_validators_agree_so_far(scene: Scene) -> None:
    scene.judge("accept")
    assert await scene.turns([1e4]) == 0
    scene.judge("accept", "accept")
    assert not scene.reports.open
    assert await scene.turns([1e5]) == 0


@pytest.mark.parametrize("damage", [None, b"other bytes"])
async def test_turn__blob_that_this_disk_lost_ends_nothing(scene: Scene, damage: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "submissions/1/0.parquet"
    path.unlink() if damage is None else path.write_bytes(damage)
    scene.judge("soft")
    assert await scene.turns([1.0]) == 0


async def test_turn__no_relay_answers_costs_one_try(scene: Scene) -> None:
    scene.relays.is_down = True
    scene.judge("soft")
    await scene.turns([1.0])
    scene.relays.is_down = False
    assert await scene.turns([1e4]) == 1


async def test_tell__missing_blob_is_no_refusal_yet(scene: Scene) -> None:
    scene.judge("soft", "soft", "soft")
    assert scene.reports.open == 1
    scene.reports.tell(at_last=True)
    assert scene.reports.open == 0
