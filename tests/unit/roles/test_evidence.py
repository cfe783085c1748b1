"""Evidence of a strike: what proves a node's faults, and what does not."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.encoding import decode
from ledger.records import Commit, HeldStrike, Strike
from roles.evidence import (
    MAX_EVIDENCE,
    MAX_UNPACKED,
    EvidenceRefused,
    check_evidence,
    held_against,
    open_evidence,
    pack_evidence,
    steps_dealt_with,
)
from roles.messages import Submission
from roles.rules import Reason
from roles.tally import Contribution, TallyItem, pack_item
from roles.tally.context import Bench
from tests.builders import STRANGER, VALIDATORS, WORKERS, make_submission, make_verdict, make_world

WORLD = make_world()
CHEAT = WORKERS[0]
BENCH = Bench(WORLD.run, WORLD.spec.buckets, [key.node for key in VALIDATORS], 2)


def fault(index: int = 0, *, voters: Any = VALIDATORS[:2], outcome: str = "fault", **changes: Any) -> TallyItem:
    """A submission that these validators found at fault."""
    submission = make_submission(WORLD, CHEAT, index=index, **changes)
    verdict = make_verdict(submission, outcome=outcome, reason=401)
    rows = tuple(WORLD.row(verdict, key) for key in voters)
    return pack_item(Contribution(WORLD.row(submission, CHEAT), rows))


def pack(*faults: TallyItem, **changes: Any) -> bytes:
    """A blob of evidence."""
    return pack_evidence(**{"run": WORLD.run, "node": CHEAT.node, "number": 0, "faults": faults, **changes})


def check(data: bytes, **changes: Any) -> int:
    """How many faults a validator finds proved."""
    fields = {"node": CHEAT.node, "number": 0, "bench": BENCH, "needed": 2, "after_step": -1, "keys": [CHEAT.node]}
    return len(check_evidence(data, **{**fields, **changes}))


def test_check_evidence__two_indices_a_quorum_found_at_fault() -> None:
    assert check(pack(fault(0), fault(1))) == 2


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pack(fault(0)), id="too few"),
        pytest.param(pack(fault(0), fault(0, tokens=101)), id="one index twice"),
        pytest.param(pack(fault(0), fault(1, voters=VALIDATORS[:1])), id="no quorum"),
        pytest.param(pack(fault(0), fault(1, voters=(VALIDATORS[0], VALIDATORS[0]))), id="one validator twice"),
        pytest.param(pack(fault(0), fault(1, voters=(VALIDATORS[0], STRANGER))), id="a stranger's verdict"),
        pytest.param(pack(fault(0), fault(1, outcome="soft")), id="soft refusals"),
        pytest.param(pack(fault(0), fault(1, outcome="accept")), id="acceptances"),
        pytest.param(pack(fault(0), fault(1), number=1), id="of another strike"),
        pytest.param(pack(fault(0), fault(1), node=WORKERS[1].node), id="of another node"),
        pytest.param(pack(fault(0), fault(1), run="ab" * 32), id="of another run"),
    ],
)
def test_check_evidence__proves_nothing(data: bytes) -> None:
    with pytest.raises(EvidenceRefused):
        check(data)


def test_check_evidence__another_nodes_submissions_under_this_ones_name() -> None:
    with pytest.raises(EvidenceRefused):
        check(pack(fault(0), fault(1), node=WORKERS[1].node), node=WORKERS[1].node, keys=[WORKERS[1].node])


def test_check_evidence__what_an_earlier_key_of_the_node_handed_in() -> None:
    data, new = pack(fault(0), fault(1), node=WORKERS[1].node), WORKERS[1].node
    assert check(data, node=new, keys=(CHEAT.node, new)) == 2
    with pytest.raises(EvidenceRefused, match="another node's"):
        check(data, node=new, keys=(new,))


def test_check_evidence__verdicts_of_who_has_left_refuse_nothing() -> None:
    present = Bench(WORLD.run, WORLD.spec.buckets, [key.node for key in VALIDATORS[:2]], 2)
    stale = fault(0, voters=VALIDATORS[1:])  # proved by one who is there, and one who left
    assert check(pack(stale, fault(1, voters=VALIDATORS), fault(2)), bench=present) == 2
    with pytest.raises(EvidenceRefused, match="1 faults are proved"):
        check(pack(stale, fault(1)), bench=present)


def test_check_evidence__faults_that_were_dealt_with() -> None:
    assert check(pack(fault(0), fault(1)), after_step=0) == 2
    with pytest.raises(EvidenceRefused):
        check(pack(fault(0), fault(1)), after_step=1)


def test_check_evidence__judged_by_the_validators_of_the_time() -> None:
    with pytest.raises(EvidenceRefused):
        check(pack(fault(0), fault(1)), bench=Bench(WORLD.run, 1, [key.node for key in VALIDATORS[1:]], 2))


def held_by(*faults: TallyItem, bench: Bench = BENCH) -> list[tuple[str, int, int]]:
    """Signer, index and reason of each fault held against the cheat."""
    found = held_against(pack(*faults), bench=bench, keys=(CHEAT.node,))
    return [(row.signer, decode(Submission, row.payload).index, reason) for row, reason in found]


def test_held_against__as_signed_with_the_reason_given() -> None:
    assert held_by(fault(0), fault(1)) == [(CHEAT.node, index, Reason.WRONG_REWARD) for index in (0, 1)]


def test_held_against__one_index_once_and_nothing_that_no_quorum_said() -> None:
    unproved = fault(1, voters=VALIDATORS[:1]), fault(2, voters=(STRANGER,)), fault(3, outcome="soft")
    assert held_by(fault(0), fault(0, tokens=101), *unproved) == [(CHEAT.node, 0, Reason.WRONG_REWARD)]


def test_held_against__nobody_elses_submission() -> None:
    assert held_against(pack(fault(0)), bench=BENCH, keys=(WORKERS[1].node,)) == []


@pytest.mark.parametrize("data", [b"", b"{}", zlib.compress(b"{}"), bytes(MAX_EVIDENCE + 1), pack(fault(0)) + b"x"])
def test_open_evidence__garbage(data: bytes) -> None:
    with pytest.raises(EvidenceRefused):
        open_evidence(data)


def test_open_evidence__bomb_is_refused_in_bounded_memory() -> None:
    with pytest.raises(EvidenceRefused):
        open_evidence(zlib.compress(bytes(MAX_UNPACKED + 1)))


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400))
def test_open_evidence__any_bytes_parse_or_are_refused(data: bytes) -> None:
    for candidate in (data, zlib.compress(data)):
        with pytest.raises(EvidenceRefused):
            open_evidence(candidate)


def test_steps_dealt_with__those_open_when_the_last_strike_was_made() -> None:
    commits = [Commit(1, step, f"{step:064x}", "0" * 64, False, 10 * step, 0) for step in range(6)]
    struck = HeldStrike(Strike(WORLD.run, CHEAT.node, None, 0, 401, "ab" * 32), block=35, until=0, attesters=())
    assert steps_dealt_with([], commits, async_level=2) == -1
    assert steps_dealt_with([struck], commits, async_level=2) == 3 + 2 + 1
