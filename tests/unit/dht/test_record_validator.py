"""The validator and hivemind's packed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from dht.bare import DHTID, node_module
from dht.envelope import Envelope, to_bytes
from dht.errors import Malformed
from dht.record_validator import EnvelopeValidator, pack_rows, parse_rows, unwrap_subkey, wrap

RUN = "ab" * 32
MSGPackSerializer = node_module.MSGPackSerializer
MakeRow = Callable[..., Envelope]


@pytest.fixture
def validator() -> EnvelopeValidator:
    return EnvelopeValidator(run=RUN, limits={"node/1": 4096})


@pytest.fixture
def open_record(validator: EnvelopeValidator, make_row: MakeRow) -> Callable[..., Envelope]:
    """Opens a valid record; any of its four fields can be given."""

    def opened(**fields: Any) -> Envelope:
        row = make_row()
        valid = {
            "key": DHTID.generate(row.key).to_bytes(),
            "subkey": MSGPackSerializer.dumps(row.subkey),
            "value": MSGPackSerializer.dumps(to_bytes(row)),
            "expiration_time": row.expiration / 1000,
        }
        record = valid | fields
        return validator.open(
            record["key"], unwrap_subkey(record["subkey"]), record["value"], record["expiration_time"]
        )

    return opened


def test_open__a_row_under_its_own_name__dht_22(open_record: Callable[..., Envelope], make_row: MakeRow) -> None:
    assert open_record() == make_row()


@pytest.mark.parametrize(
    "spoiled",
    [
        {"key": DHTID.generate(f"{RUN}/nodes/trainer").to_bytes()},  # DHT-22
        {"key": b""},
        {"subkey": MSGPackSerializer.dumps("12D3KooWother")},  # DHT-19
        {"subkey": MSGPackSerializer.dumps(None)},  # DHT-15: a plain value
        {"subkey": b""},
        {"subkey": b"\xc1"},
        {"expiration_time": 1e12},  # DHT-14
        {"expiration_time": float("nan")},
        {"value": b"\xc1"},  # DHT-11
        {"value": b""},
        {"value": MSGPackSerializer.dumps("text")},
        {"value": MSGPackSerializer.dumps(b"no row")},
        {"value": b"\x91" * 5000},
        {"value": None},  # DHT-13
        {"subkey": 7},
    ],
)
def test_open__spoiled_records_are_malformed_and_nothing_else__dht_13_dht_15(
    open_record: Callable[..., Envelope], spoiled: dict[str, object]
) -> None:
    with pytest.raises(Malformed):
        open_record(**spoiled)


def test_open__two_encodings_of_one_value__dht_11(open_record: Callable[..., Envelope], make_row: MakeRow) -> None:
    data = to_bytes(make_row())
    longer = b"\xc6" + len(data).to_bytes(4, "big") + data  # bin32 where bin16 would do
    assert msgpack.unpackb(longer) == data
    with pytest.raises(Malformed):
        open_record(value=longer)


def test_pack_rows__is_hiveminds_own_form__dht_21(make_row: MakeRow) -> None:
    row = make_row()
    theirs = node_module.DictionaryDHTValue()
    theirs.store(row.subkey, wrap(to_bytes(row)), 4e9)
    ours = pack_rows([(row.subkey, wrap(to_bytes(row)), 4e9)])
    assert ours == MSGPackSerializer.dumps(theirs)
    assert parse_rows(ours) == [(row.subkey, wrap(to_bytes(row)), 4e9)]


@pytest.mark.parametrize("item", [7, [], ["a", b"b"], [b"a", b"b", 1.0], ["a", "b", 1.0], ["a", b"b", None]])
def test_parse_rows__an_item_that_is_no_row_costs_only_itself__dht_12(item: object) -> None:
    good = ["subkey", b"value", 1.0]
    assert parse_rows(pack_rows_raw([item, good])) == [("subkey", b"value", 1.0)]


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", msgpack.packb(msgpack.ExtType(0x50, b"\x93")), b"\x91" * 4000])
def test_parse_rows__what_does_not_unpack__dht_11(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_rows(data)


def pack_rows_raw(items: list[object]) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([float("inf"), 1.0, items])))
    return packed
