"""The validator and the reader of dictionaries on arbitrary bytes: a verdict or Malformed, never anything else (DHT-13)."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dht.bare import DHTID
from dht.envelope import seal, to_bytes
from dht.errors import Malformed
from dht.identity import NodeKey
from dht.record_validator import EnvelopeValidator, pack_rows, parse_rows, unwrap, unwrap_subkey, wrap
from dht.rows import Caps, RowStore

RUN = "ab" * 32
KEY = NodeKey(b"v" * 32)
VALIDATOR = EnvelopeValidator(run=RUN, limits={"node/1": 4096})
ROW = seal(
    KEY, run=RUN, kind="node/1", record_key=f"{RUN}/x", subkey=KEY.node, sequence=1, expiration=2000, payload=b"{}"
)
PLACE, SUBKEY, VALUE, EXPIRATION = DHTID.generate(ROW.key).to_bytes(), wrap(ROW.subkey), wrap(to_bytes(ROW)), 2.0

packed = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=30)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
).map(msgpack.packb)
junk = st.binary(max_size=60) | packed


@given(junk, junk, junk, st.floats())
@example(b"", b"\xc0", b"", 0.0)
@example(PLACE, SUBKEY, b"\xc4", 2.0)
@example(PLACE, SUBKEY, b"\x81" * 10_000, 2.0)
def test_open__any_record(key: bytes, subkey: bytes, value: bytes, expiration: float) -> None:
    with pytest.raises(Malformed):
        VALIDATOR.open(key, unwrap_subkey(subkey), value, expiration)
    with pytest.raises(Malformed):
        VALIDATOR.open(PLACE, ROW.subkey, value, expiration)


@given(st.integers(0, len(VALUE) - 1), st.integers(1, 255))
@settings(max_examples=60)
def test_open__any_changed_byte(position: int, change: int) -> None:
    assert VALIDATOR.open(PLACE, ROW.subkey, VALUE, EXPIRATION) == ROW
    value = bytearray(VALUE)
    value[position] ^= change
    with pytest.raises(Malformed):
        VALIDATOR.open(PLACE, ROW.subkey, bytes(value), EXPIRATION)


@given(junk)
def test_unwrap_subkey__any_bytes(data: bytes) -> None:
    try:
        subkey = unwrap_subkey(data)
    except Malformed:
        return
    assert wrap(subkey) == data


@given(st.binary(max_size=100))
def test_unwrap__of_wrap(data: bytes) -> None:
    assert unwrap(wrap(data)) == data


@given(junk)
@example(b"\xc7\x00\x50")
def test_parse_rows__any_bytes(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_rows(data)


@given(junk)
def test_parse_rows__any_dictionary(body: bytes) -> None:
    try:
        rows = parse_rows(msgpack.packb(msgpack.ExtType(0x50, body)))
    except Malformed:
        return
    assert all(isinstance(subkey, str) and isinstance(value, bytes) for subkey, value, _ in rows)


@given(st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=20), st.floats(0, 1e12)), max_size=9))
def test_parse_rows__of_pack_rows(items: list[tuple[str, bytes, float]]) -> None:
    assert parse_rows(pack_rows(items)) == items


SIGNERS = [NodeKey(bytes([number]) * 32) for number in range(3)]
offers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5), st.integers(1, 40), st.integers(0, 300)),
    max_size=40,
)


@given(offers)
@settings(max_examples=60, deadline=None)
def test_row_store__never_over_its_caps_and_newest_stays(steps: list[tuple[int, int, int, int, int]]) -> None:
    caps = Caps(keys=2, rows_per_key=4, rows_per_signer=2, bytes_per_key=2000, total_bytes=3000)
    store, now = RowStore(lifetimes={"node/1": 90}, caps=caps), 0
    for signer, place, sequence, lifetime, size in steps:
        now += 1000
        row = seal(
            SIGNERS[signer],
            run=RUN,
            kind="node/1",
            record_key=f"{RUN}/{place % 2}",
            subkey=f"{SIGNERS[signer].node}:{place}",
            sequence=sequence,
            expiration=now + lifetime * 1000,
            payload=b"x" * size,
        )
        kept = store.put(row, now).kept
        held = {row.subkey: row for row, _ in store.rows(row.key, now)}
        assert not kept or held[row.subkey] == row
        total = 0
        for key in store.keys(now):
            rows = store.rows(key, now)
            signers = [row.signer for row, _ in rows]
            assert all(row.expiration > now for row, _ in rows)
            assert len(rows) <= 4
            assert max(map(signers.count, signers)) <= 2
            assert sum(len(data) for _, data in rows) <= 2000
            total += sum(len(data) for _, data in rows)
        assert total == store.total_bytes <= 3000
