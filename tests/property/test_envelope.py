"""Signed rows: round trips, and every byte of a row is signed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dht.envelope import MAX_HINT, Envelope, body_digest, from_bytes, seal, to_bytes
from dht.errors import Malformed
from dht.identity import NodeKey, node_id_of, public_key_of, verify

LIMIT = 4096
times = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=32, max_size=32).map(NodeKey)
names = st.text(max_size=40)


@st.composite
def rows(draw: st.DrawFn) -> Envelope:
    key = draw(keys)
    return seal(
        key,
        run=draw(names),
        kind=draw(names),
        record_key=draw(names),
        subkey=key.node + draw(st.sampled_from(["", ":", ":1", ":12D3KooW:x"])),
        sequence=draw(times),
        expiration=draw(times),
        payload=draw(st.binary(max_size=200)),
        hint=draw(st.binary(max_size=MAX_HINT)),
    )


@given(rows())
@settings(max_examples=50)
def test_from_bytes__of_to_bytes(row: Envelope) -> None:
    assert from_bytes(to_bytes(row), limit=LIMIT) == row


@given(rows(), st.data())
@settings(max_examples=80)
def test_from_bytes__any_changed_byte_is_refused(row: Envelope, data: st.DataObject) -> None:
    good = to_bytes(row)
    position = data.draw(st.integers(0, len(good) - 1))
    bad = good[:position] + bytes([good[position] ^ data.draw(st.integers(1, 255))]) + good[position + 1 :]
    with pytest.raises(Malformed):
        from_bytes(bad, limit=LIMIT)


@given(st.binary(max_size=300))
@example(b"\x00\x00\x00\x00" * 9)
def test_from_bytes__any_bytes(data: bytes) -> None:
    with pytest.raises(Malformed):
        from_bytes(data, limit=LIMIT)


@given(rows(), keys)
@settings(max_examples=30)
def test_from_bytes__another_node_cannot_sign_for_the_signer(row: Envelope, other: NodeKey) -> None:
    assume(other.node != row.signer)
    forged = dataclasses.replace(row, subkey=other.node)
    with pytest.raises(Malformed):
        from_bytes(to_bytes(forged), limit=LIMIT)


@given(rows())
@settings(max_examples=30)
def test_digest__covers_the_body_alone(row: Envelope) -> None:
    moved = dataclasses.replace(row, sequence=1, expiration=2, hint=b"elsewhere")
    assert moved.digest == row.digest == body_digest(row.run, row.kind, row.payload)
    assert dataclasses.replace(row, kind=row.kind + "x").digest != row.digest


@given(st.binary(min_size=32, max_size=32))
def test_public_key_of__is_in_the_node_id(public_key: bytes) -> None:
    node = node_id_of(public_key)
    assert node.startswith("12D3KooW")
    assert public_key_of(node) == public_key


@given(st.text(max_size=70), st.binary(max_size=64), st.binary(max_size=70))
@example("12D3KooWGZMotrwfifdoVjoBZLu8pvHSwkYkfGFGmEsinQrDGnqH", b"", b"")
def test_verify__any_input_never_raises(node: str, message: bytes, signature: bytes) -> None:
    assert not verify(node, message, signature)
