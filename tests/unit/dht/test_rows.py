"""Row validation and the bounded store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dht.envelope import Envelope, to_bytes
from dht.errors import Malformed
from dht.rows import Caps, Outcome, RowGate, RowStore, newest

RUN = "ab" * 32
NOW = 1_700_000_000_000
MakeRow = Callable[..., Envelope]


def make_store(**caps: int) -> RowStore:
    return RowStore(lifetimes={"node/1": 90}, caps=Caps(**caps))


@pytest.fixture
def gate() -> RowGate:
    return RowGate(run=RUN, limits={"node/1": 4096, "head/1": 600})


def test_open__valid(gate: RowGate, make_row: MakeRow) -> None:
    assert gate.open(to_bytes(make_row())) == make_row()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run": "cd" * 32}, "another run"),  # BOOT-04
        ({"record_key": "elsewhere/nodes"}, "another run"),
        ({"kind": "poem/1"}, "unknown here"),
        ({"kind": "head/1", "payload": b"x" * 600}, "too long"),
        ({"payload": b"x" * 5000}, "over the limit"),
        ({"record_key": f"{RUN}/{'x' * 300}"}, "too long"),
        ({"tail": ":" + "x" * 300}, "too long"),
    ],
)
def test_open__refused__dht_10(gate: RowGate, make_row: MakeRow, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        gate.open(to_bytes(make_row(**fields)))


def test_open__another_signers_name__dht_19(gate: RowGate, make_row: MakeRow) -> None:
    mine, theirs = make_row(1), make_row(2)
    forged = to_bytes(mine).replace(mine.signer.encode(), theirs.signer.encode())
    with pytest.raises(Malformed, match="signature"):
        gate.open(forged)


def test_put__highest_sequence_wins_in_any_order(make_row: MakeRow) -> None:
    rows = [make_row(sequence=NOW + number, expiration=NOW + 60_000 - number) for number in range(3)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        store = make_store()
        for index in order:
            store.put(rows[index], NOW)
        assert [row for row, _ in store.rows(rows[0].key, NOW)] == [rows[2]]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"expiration": NOW}, Outcome.EXPIRED),
        ({"expiration": NOW + 90_000 + 30_000}, Outcome.STORED),
        ({"expiration": NOW + 90_000 + 30_001}, Outcome.TOO_FAR),
        ({"expiration": 2**63}, Outcome.TOO_FAR),
        ({"kind": "head/1"}, Outcome.TOO_FAR),  # a kind without a lifetime
    ],
)
def test_put__expiry_is_capped__dht_14(make_row: MakeRow, fields: dict[str, Any], outcome: Outcome) -> None:
    assert make_store().put(make_row(**fields), NOW) is outcome


def test_put__same_bytes_are_held_and_older_ones_refused(make_row: MakeRow) -> None:
    store = make_store()
    row = make_row(sequence=NOW)
    assert store.put(row, NOW) is Outcome.STORED
    assert store.put(row, NOW) is Outcome.HELD
    assert store.put(make_row(sequence=NOW), NOW) is Outcome.HELD
    assert store.put(make_row(sequence=NOW, payload=b"other"), NOW) is Outcome.OLDER
    assert store.counts == {"stored": 1, "held": 1, "older": 1}


def test_put__strangers_are_refused(make_row: MakeRow) -> None:
    store = RowStore(lifetimes={"node/1": 90}, membership=lambda row: row.signer == make_row(1).signer)
    assert store.put(make_row(1), NOW) is Outcome.STORED
    assert store.put(make_row(2), NOW) is Outcome.STRANGER


def test_put__rows_of_one_signer_are_capped__dht_16(make_row: MakeRow) -> None:
    store = make_store(rows_per_signer=2)
    outcomes = [store.put(make_row(tail=f":{number}"), NOW) for number in range(3)]
    assert outcomes == [Outcome.STORED, Outcome.STORED, Outcome.SIGNER_FULL]
    assert store.put(make_row(tail=":0", sequence=NOW + 1), NOW) is Outcome.STORED  # a replacement is no new row


def test_put__a_flood_makes_room_for_others__dht_09(make_row: MakeRow) -> None:
    store = make_store(bytes_per_key=4000)
    while store.put(make_row(1, tail=f":{len(store)}"), NOW) is Outcome.STORED:
        pass
    flooded = len(store)
    assert store.put(make_row(2), NOW) is Outcome.STORED
    signers = [row.signer for row, _ in store.rows(make_row().key, NOW)]
    assert signers.count(make_row(2).signer) == 1
    assert len(signers) <= flooded
    assert store.total_bytes <= 4000
    assert store.counts["evicted"] >= 1


def test_put__a_full_key_of_equals_takes_no_more(make_row: MakeRow) -> None:
    store = make_store(rows_per_key=3)
    outcomes = [store.put(make_row(number), NOW) for number in range(1, 5)]
    assert outcomes == [Outcome.STORED] * 3 + [Outcome.KEY_FULL]


@pytest.mark.parametrize("caps", [{"rows_per_key": 4}, {"rows_per_signer": 4}])
def test_put__what_a_signer_says_most_of_one_about_makes_room_for_others(
    make_row: MakeRow, caps: dict[str, int]
) -> None:
    """A validator gives a verdict on whatever it receives: one worker's junk must not
    keep the verdicts on others out."""
    store = RowStore(lifetimes={"node/1": 90}, about=lambda row: row.payload.decode(), caps=Caps(**caps))
    for number in range(4):
        junk = make_row(tail=f":{number}", payload=b"junk", expiration=NOW + 60_000 + number)
        assert store.put(junk, NOW) is Outcome.STORED
    assert not store.put(make_row(tail=":4", payload=b"junk"), NOW).kept
    for number in range(2):
        assert store.put(make_row(tail=f":h{number}", payload=b"honest"), NOW) is Outcome.STORED
    assert not store.put(make_row(tail=":h2", payload=b"honest"), NOW).kept  # it has as many now
    left = {row.subkey.partition(":")[2] for row, _ in store.rows(f"{RUN}/nodes/worker", NOW)}
    assert left == {"2", "3", "h0", "h1"}


def test_put__keys_and_bytes_are_capped__dht_16(make_row: MakeRow) -> None:
    store = make_store(keys=2)
    outcomes = [store.put(make_row(record_key=f"{RUN}/{number}"), NOW) for number in range(3)]
    assert outcomes == [Outcome.STORED, Outcome.STORED, Outcome.STORE_FULL]
    small = make_store(total_bytes=500)
    assert [small.put(make_row(number), NOW) for number in (1, 2)] == [Outcome.STORED, Outcome.STORE_FULL]


def test_put__one_signer_cannot_use_up_the_keys__dht_16(make_row: MakeRow) -> None:
    store = make_store(keys=3)
    flood = [store.put(make_row(1, record_key=f"{RUN}/{number}", tail=f":{number}"), NOW) for number in range(5)]
    assert flood.count(Outcome.STORED) == 3
    assert store.put(make_row(2, record_key=f"{RUN}/honest"), NOW) is Outcome.STORED
    assert store.put(make_row(1, record_key=f"{RUN}/again"), NOW) is Outcome.STORE_FULL
    assert [row.signer for row, _ in store.rows(f"{RUN}/honest", NOW)] == [make_row(2).signer]
    assert len(store.keys(NOW)) == 3


def test_put__one_signer_cannot_use_up_the_bytes__dht_16(make_row: MakeRow) -> None:
    store = make_store(total_bytes=4000)
    while store.put(make_row(1, record_key=f"{RUN}/{len(store)}"), NOW) is Outcome.STORED:
        pass
    assert store.put(make_row(2, record_key=f"{RUN}/honest"), NOW) is Outcome.STORED
    assert store.total_bytes <= 4000
    assert store.counts["evicted"] == 1


def test_put__strangers_taken_before_the_members_were_known_make_room_first(make_row: MakeRow) -> None:
    members: set[str] = set()
    store = RowStore(
        lifetimes={"node/1": 90},
        membership=lambda row: not members or row.signer in members,
        caps=Caps(rows_per_key=4),
    )
    for number in range(10, 14):
        assert store.put(make_row(number), NOW) is Outcome.STORED
    members |= {make_row(1).signer}
    outcomes = [store.put(make_row(1, tail=f":{number}"), NOW) for number in range(4)]
    assert outcomes == [Outcome.STORED] * 4  # though one with four rows is heavier than four strangers with one
    assert {row.signer for row, _ in store.rows(make_row().key, NOW)} == members


def test_put__free_identities_do_not_crowd_out_those_that_cost(make_row: MakeRow) -> None:
    relay = make_row(1).signer
    store = RowStore(lifetimes={"node/1": 90}, settled=lambda row: row.signer == relay, caps=Caps(rows_per_key=4))
    for number in range(10, 14):
        assert store.put(make_row(number), NOW) is Outcome.STORED
    assert store.put(make_row(1), NOW) is Outcome.STORED
    for number in range(20, 40):
        store.put(make_row(number), NOW + 1000 * number // 20)
    assert relay in {row.signer for row, _ in store.rows(make_row().key, NOW)}


def test_version__never_repeats_though_the_key_was_empty(make_row: MakeRow) -> None:
    store, key = make_store(), make_row().key
    store.put(make_row(1, expiration=NOW + 5), NOW)
    before = store.version(key, NOW)
    store.put(make_row(2), NOW + 5)
    assert store.version(key, NOW + 5) != before


def test_rows__expired_ones_free_their_room(make_row: MakeRow) -> None:
    store = make_store(rows_per_key=1)
    store.put(make_row(1, expiration=NOW + 1000), NOW)
    later = NOW + 1000
    assert store.rows(make_row().key, later) == []
    assert store.total_bytes == 0
    assert store.put(make_row(2), later) is Outcome.STORED


def test_version__changes_with_the_rows(make_row: MakeRow) -> None:
    store, key = make_store(), make_row().key
    versions = [store.version(key, NOW)]
    for row, now in ((make_row(1), NOW), (make_row(2, expiration=NOW + 5), NOW), (make_row(1), NOW + 5)):
        store.put(row, now)
        versions.append(store.version(key, now))
    assert len(set(versions)) == 4


def test_newest__of_each_subkey(make_row: MakeRow) -> None:
    old, new, gone = make_row(sequence=1), make_row(sequence=2), make_row(2, expiration=NOW)
    assert newest([new, old, gone], NOW) == [new]
