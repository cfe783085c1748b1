"""Proposals that omit much of what a validator holds, and how long it objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from roles.spec import CheckSpec, EpochSpec
from roles.tally import Contribution, TallyBody, TallyContext, build_tally, check_tally, open_tally
from roles.tally.limits import HEADER_BYTES, TallyLimits
from roles.validator.omissions import SPREAD_MS, Omissions
from tests.builders import VALIDATORS, WORKERS, World, make_spec, make_submission, make_verdict, make_world
from tests.unit.roles.test_gathering import make_gathering
from tests.unit.roles.test_tally import contribution, make_context

CLOSE = 1_000_000
"""When the epoch is first seen to close, in ms."""
BLOB = "ab" * 32


class Watching:
    """A validator that holds submissions and examines one proposal."""

    def __init__(self, folder: Path, *, audit_window: int = 0) -> None:
        spec = make_spec(checks=CheckSpec(audit_window=audit_window), epoch=EpochSpec(checkpoints=2, round_seconds=10))
        self.world: World = make_world(spec)
        self.now = [CLOSE]
        self.gathering = make_gathering(self.world, folder, self.now)
        self.omissions = Omissions(spec=spec, gathering=self.gathering, clock=lambda: self.now[0])

    def context(self, **changes: Any) -> TallyContext:
        """The first epoch."""
        names = tuple(key.node for key in VALIDATORS)
        return make_context(spec=self.world.spec, run=self.world.run, in_force=names, **changes)

    def accept(self, key: NodeKey, tokens: int, *, at: int = CLOSE) -> Contribution:
        """A quorum's acceptances arrive at this time."""
        self.now[0] = at
        item = contribution(make_submission(self.world, key, tokens=tokens), world=self.world)
        self.world.trusted.admit_submission(item.submission)
        for row in item.verdicts:
            self.world.trusted.admit_verdict(row)
        self.gathering.note()
        return item

    def forbids(
        self,
        items: Sequence[Contribution],
        *,
        round_number: int = 0,
        seen: int = CLOSE,
        at: int = CLOSE,
        **changes: Any,
    ) -> bool:
        """Whether it refuses to attest a tally of just these, which came at `at`; the
        epoch was `seen` to close before."""
        context = self.context(**changes)
        body = self.tally(items, context, round_number=round_number)
        self.now[0] = seen
        self.omissions.look({context.closing_block: 0})
        self.now[0] = at
        self.omissions.see(BLOB)
        return self.omissions.forbid(BLOB, body, context)

    def tally(self, items: Sequence[Contribution], context: TallyContext, *, round_number: int = 0) -> TallyBody:
        """A tally without any provable lie."""
        blob, proposal = build_tally(context, items, round_number=round_number)
        check_tally(blob, proposal, context)
        return open_tally(blob)


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(tmp_path)


def test_forbid__proposer_keeps_the_pot_for_a_friend(watching: Watching) -> None:
    watching.accept(WORKERS[0], 1_000_000)
    friend = watching.accept(WORKERS[1], 1)
    before = watching.world.state()
    assert watching.forbids([friend])
    assert watching.world.state() == before


def test_forbid__nothing_at_all_is_in_it(watching: Watching) -> None:
    watching.accept(WORKERS[0], 100)
    assert watching.forbids([])


@pytest.mark.parametrize(("tokens", "is_much"), [(10, False), (11, True)])
def test_forbid__a_tenth_is_no_matter(watching: Watching, tokens: int, is_much: bool) -> None:
    most = watching.accept(WORKERS[0], 100)
    watching.accept(WORKERS[1], tokens)
    assert watching.forbids([most]) is is_much


def test_forbid__what_this_node_does_not_hold_is_welcome(watching: Watching) -> None:
    mine = watching.accept(WORKERS[0], 100)
    other = contribution(make_submission(watching.world, WORKERS[1], tokens=1000), world=watching.world)
    assert not watching.forbids([mine, other])


def test_forbid__accepted_after_the_close__others_may_not_have_it_yet(watching: Watching) -> None:
    known = watching.accept(WORKERS[0], 1)
    watching.accept(WORKERS[1], 1000, at=CLOSE + 10)
    assert not watching.forbids([known], at=CLOSE + SPREAD_MS)


def test_forbid__accepted_well_before_the_proposal(watching: Watching) -> None:
    known = watching.accept(WORKERS[0], 1)
    watching.accept(WORKERS[1], 1000, at=CLOSE + 10)
    assert watching.forbids([known], at=CLOSE + SPREAD_MS + 11)


def test_forbid__disputed_since(watching: Watching) -> None:
    known = watching.accept(WORKERS[0], 1)
    other = make_submission(watching.world, WORKERS[1], tokens=1000)
    watching.accept(WORKERS[1], 1000)
    fault = make_verdict(other, outcome="fault", reason=602)
    for validator in VALIDATORS[1:]:
        watching.world.trusted.admit_verdict(watching.world.row(fault, validator, sequence=2**41))
    assert not watching.forbids([known])


def test_forbid__accepted_by_validators_whose_verdicts_do_not_count(watching: Watching) -> None:
    watching.accept(WORKERS[0], 1000)
    assert not watching.forbids([], validators=(VALIDATORS[2].node,), quorum=1)


def test_forbid__there_was_no_room_for_it(watching: Watching) -> None:
    watching.accept(WORKERS[0], 1000)
    assert not watching.forbids([], limits=TallyLimits(leaves={}, body=HEADER_BYTES + 100))


@pytest.mark.parametrize(("round_number", "forbids"), [(5, True), (6, False)])
def test_forbid__everybody_has_had_two_turns__the_epoch_must_close(
    watching: Watching, round_number: int, forbids: bool
) -> None:
    """Three validators; the close was seen in round 0."""
    watching.accept(WORKERS[0], 1000)
    assert watching.forbids([], round_number=round_number) is forbids


def test_forbid__turns_are_counted_from_when_things_are_past_their_audits(tmp_path: Path) -> None:
    watching = Watching(tmp_path, audit_window=60)  # six rounds
    watching.accept(WORKERS[0], 1000, at=CLOSE - 100_000)
    assert watching.forbids([], round_number=11)
    assert not watching.forbids([], round_number=12)


def test_forbid__what_waits_for_audits_is_not_missed(tmp_path: Path) -> None:
    watching = Watching(tmp_path, audit_window=60)
    known = watching.accept(WORKERS[0], 1, at=CLOSE - 100_000)
    watching.accept(WORKERS[1], 1000, at=CLOSE - 50_000)
    assert not watching.forbids([known])


def test_forbid__what_waits_for_audits_is_missed_beside_what_was_accepted_later(tmp_path: Path) -> None:
    """Otherwise a friend's newest submissions would be credited alone, before anybody else proposes."""
    watching = Watching(tmp_path, audit_window=60)
    watching.accept(WORKERS[1], 1000, at=CLOSE - 50_000)
    friend = watching.accept(WORKERS[0], 1, at=CLOSE - 40_000)
    assert watching.forbids([friend])
