"""The participants of a run: everybody seen, named or registered is listed once, with what is known of each."""

from __future__ import annotations

from collections import Counter

from ledger.records import Registration
from node.contributions import Contributions
from node.participants import count_states, list_participants, newest_records
from roles.messages import NodeRecord
from roles.reputation import Records, ValidatorRecord, WorkerRecord
from tests.builders import NOW, STRANGER, TRAINER, VALIDATORS, WORKERS, make_row, make_spec

SPEC = make_spec()
WALLET, CLAIM = "0x" + "11" * 20, "0x" + "22" * 20
NOTHING = Contributions(None, {}, {}, {})


def record(key: object, role: str, **changes: object) -> NodeRecord:
    """An online node's."""
    fields: dict[str, object] = {"node": key.node, "role": role, "software": "x/1", "boot": "0" * 16}  # type: ignore[attr-defined]
    return NodeRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_build_roll__named_seen_and_registered_each_once_by_role() -> None:
    linked = Registration(WORKERS[0].node, WALLET, None, nonce=1, first_block=7, block=9)
    claimed = Registration(WORKERS[1].node, None, CLAIM, nonce=1, first_block=8, block=8)
    participants = list_participants(
        SPEC,
        seen={
            WORKERS[0].node: record(WORKERS[0], "worker", hardware="a machine"),
            STRANGER.node: record(STRANGER, "relay"),
        },
        registrations={item.node: item for item in (linked, claimed)},
        records=Records(
            {WORKERS[0].node: WorkerRecord(accepted=3, faults=1, tokens=5)},
            {VALIDATORS[0].node: ValidatorRecord(agreed=4)},
        ),
        earned=Contributions(
            None, final={(WORKERS[1].node, None): 50}, pending={(WORKERS[0].node, WALLET): 5}, registrations={}
        ),
    )
    assert [one.role for one in participants] == ["trainer", *["validator"] * 3, "relay", "worker", "worker"]
    first, second = participants[-2:]
    assert (first.node, first.wallet, first.is_linked, first.final, first.state) == (
        *(WORKERS[1].node, CLAIM, False, 50, "unseen"),
    )
    assert (second.wallet, second.is_linked, second.since_block, second.pending) == (WALLET, True, 7, 5)
    assert (second.share, second.judged, second.strikes, second.hardware) == (0.75, 4, 1, "a machine")
    judge = next(one for one in participants if one.node == VALIDATORS[0].node)
    assert (judge.share, judge.judged, judge.is_linked) == (1.0, 4, True)
    assert count_states(participants) == {"trainer": 0, "validator": 0, "relay": 1, "worker": 1}


def test_list_participants__a_node_is_all_the_keys_it_has_had() -> None:
    """What it submitted under its earlier key is its own, and that key is not a second node."""
    old, new = WORKERS[0].node, WORKERS[1].node
    rotated = Registration(new, WALLET, None, nonce=0, first_block=7, block=9, previous=(old,))
    records = {
        old: WorkerRecord(accepted=1, faults=2, reasons=Counter(SCHEMA=2)),
        new: WorkerRecord(accepted=5, reasons=Counter(SCHEMA=1)),
    }
    participants = list_participants(
        SPEC,
        seen={old: record(WORKERS[0], "worker", state="offline"), new: record(WORKERS[1], "worker")},
        registrations={new: rotated},
        records=Records(records, {}),
        earned=Contributions(None, final={(old, WALLET): 100, (new, WALLET): 20}, pending={}, registrations={}),
    )
    (worker,) = [one for one in participants if one.role == "worker"]
    assert (worker.node, worker.final, worker.state) == (new, 120, "online")
    assert (worker.judged, worker.strikes, worker.share, worker.reasons) == (8, 2, 0.75, {"SCHEMA": 3})


def test_build_roll__a_role_is_what_the_run_names_not_what_a_node_says() -> None:
    participants = list_participants(
        SPEC,
        seen={TRAINER.node: record(TRAINER, "worker")},
        registrations={},
        records=Records({}, {}),
        earned=NOTHING,
    )
    assert participants[0].node == TRAINER.node
    assert participants[0].role == "trainer"


def test_newest_records__the_last_word_of_the_node_itself() -> None:
    said = [
        make_row(record(WORKERS[0], "worker", state="offline"), WORKERS[0], spec=SPEC, now=NOW + 1),
        make_row(record(WORKERS[0], "worker"), WORKERS[0], spec=SPEC, now=NOW),
    ]
    assert newest_records(said, spec=SPEC)[WORKERS[0].node].state == "offline"
