"""When a leader renews, when a stand-by reports a lapse and takes over, and when a leader knows it
is none: by chain time only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import structlog

from ledger.errors import LedgerRejected
from ledger.records import Block, Lease
from roles.observer import Observer
from roles.spec import TermsSpec
from roles.trainer.errors import Fenced
from roles.trainer.lease import LeaseKeeper, is_due
from roles.trainer.stand_by import next_act
from roles.trusted import LedgerView, TrustedState
from tests.builders import (
    TRAINER,
    TRAINER_OPERATOR,
    make_spec,
    make_terms,
    make_view,
    node_key,
    operator_key,
    operator_spec,
)

SECOND, THIRD = node_key(2), node_key(3)
TRAINERS = (
    operator_spec(TRAINER, TRAINER_OPERATOR),
    operator_spec(SECOND, operator_key(102)),
    operator_spec(THIRD, operator_key(103)),
)
SPEC = make_spec(trainers=TRAINERS, terms=TermsSpec(lease_seconds=60, takeover_blocks=3))
UNTIL, REPORTED = 1000, 50


def view_at(
    now: int, *, block: int = 60, lapse_block: int = 0, term: int = 1, leader: str = TRAINER.node
) -> LedgerView:
    """The ledger at a chain time; the lease ended at 1000."""
    terms = replace(make_terms(SPEC), lease_seconds=60, takeover_blocks=3)
    lease = Lease(term, leader, UNTIL, lapse_block)
    return replace(make_view(SPEC), terms=terms, head=Block(block, "ab" * 32, now), lease=lease)


def act(view: LedgerView, node: str) -> str | None:
    assert view.lease is not None
    return next_act(view.lease, view=view, node=node)


@pytest.mark.parametrize(("now", "expected"), [(999, None), (1000, None), (1001, "report")])
def test_next_act__a_lapse_is_reported_once_it_is_one(now: int, expected: str | None) -> None:
    assert act(view_at(now), SECOND.node) == expected


@pytest.mark.parametrize(("block", "expected"), [(52, None), (53, "take over")])
def test_next_act__the_lapse_must_have_been_seen_for_some_blocks(block: int, expected: str | None) -> None:
    assert act(view_at(1030, block=block, lapse_block=REPORTED), SECOND.node) == expected


@pytest.mark.parametrize(("now", "expected"), [(1060, None), (1061, "take over")])
def test_next_act__the_second_in_line_waits_a_lease_longer(now: int, expected: str | None) -> None:
    assert act(view_at(now, lapse_block=REPORTED), THIRD.node) == expected


def test_next_act__nobody_reports_a_lease_that_has_not_begun() -> None:
    view = view_at(10**6)
    assert view.lease is not None
    assert next_act(replace(view.lease, until=0), view=view, node=SECOND.node) is None


@pytest.mark.parametrize(("now", "until", "expected"), [(959, 1000, False), (960, 1000, True), (10**6, 0, False)])
def test_is_due__after_a_third_of_the_lease(now: int, until: int, expected: bool) -> None:
    assert is_due(Lease(1, TRAINER.node, until, 0), now=now, seconds=60) is expected


@dataclass
class Chain:
    """Counts renewals, and refuses them on request."""

    renewals: int = 0
    refuses: bool = False
    is_silent: bool = False

    async def renew(self) -> None:
        if self.is_silent:
            raise TimeoutError
        if self.refuses:
            raise LedgerRejected("leader")
        self.renewals += 1


@dataclass
class Scene:
    """A leader of term 1, its view of the ledger and its clock (unix ms)."""

    chain: Chain = field(default_factory=Chain)
    trusted: TrustedState = field(default_factory=lambda: TrustedState(SPEC))
    now: int = 10**12

    def __post_init__(self) -> None:
        observer = Observer(trusted=self.trusted, directory=None, ledger=None)  # type: ignore[arg-type]
        self.keeper = LeaseKeeper(
            term=1,
            node=TRAINER.node,
            trusted=self.trusted,
            observer=observer,
            ledger=self.chain,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    async def look(self, view: LedgerView) -> int:
        """Look at a view once. Returns the renewals so far."""
        self.trusted.admit_view(view)
        self.keeper.check()
        await self.keeper.renew_if_due()
        return self.chain.renewals


async def test_renew_if_due__once_until_the_ledger_shows_it() -> None:
    scene = Scene()
    assert await scene.look(view_at(959)) == 0
    assert await scene.look(view_at(960)) == 1
    assert await scene.look(view_at(962, block=61)) == 1  # on its way
    scene.now += 6_000
    assert await scene.look(view_at(966, block=62)) == 2  # it never came


async def test_renew_if_due__a_refusal_ends_nothing_by_itself() -> None:
    scene = Scene(Chain(refuses=True))
    assert await scene.look(view_at(960)) == 0
    scene.chain.refuses = False
    assert await scene.look(view_at(961, block=61)) == 1


async def test_renew_if_due__a_silent_ledger_is_said_once() -> None:
    scene = Scene(Chain(is_silent=True))
    with structlog.testing.capture_logs() as log:
        await scene.look(view_at(960))
        await scene.look(view_at(961, block=61))
    assert [event["why"] for event in log if event["event"] == "lease.unrenewed"] == ["the ledger does not answer"]


@pytest.mark.parametrize(("term", "leader"), [(2, SECOND.node), (3, TRAINER.node)])
async def test_check__another_term_fences_even_if_we_lead_it(term: int, leader: str) -> None:
    scene = Scene()
    with pytest.raises(Fenced, match=f"leads term {term}"):
        await scene.look(view_at(960, term=term, leader=leader))
    assert scene.chain.renewals == 0
