"""Canonical bytes: round trips, and Malformed for anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dht.encoding import MAX_PARTS, decode, digest, encode, pack, unpack
from dht.errors import Malformed
from roles.messages import Head, OpenStep

parts = st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20), st.integers(0, 2**64 - 1)), max_size=MAX_PARTS)
naturals = st.integers(0, 2**63 - 1)
heads = st.builds(
    Head,
    term=naturals,
    step=naturals,
    policy_step=naturals,
    manifest=st.binary(min_size=32, max_size=32).map(bytes.hex),
    groups_wanted=naturals,
    state=st.sampled_from(["collecting", "waiting", "saturated", "ended"]),
    open_steps=st.lists(
        st.builds(OpenStep, step=naturals, limit=st.integers(0, 1_000_000), share=st.integers(0, 2**64)), max_size=16
    ).map(tuple),
)


@given(parts)
def test_unpack__of_pack(items: list[bytes | str | int]) -> None:
    joined = pack(*items)
    assert pack(*unpack(joined)) == joined
    assert len(unpack(joined)) == len(items)


@given(parts, parts)
def test_pack__different_parts_have_different_bytes(
    left: list[bytes | str | int], right: list[bytes | str | int]
) -> None:
    same = unpack(pack(*left)) == unpack(pack(*right))
    assert (digest(*left) == digest(*right)) is same


@given(st.binary(max_size=200))
@example(b"\xff" * 4)
@example(b"\x00" * 4 * (MAX_PARTS + 1))
def test_unpack__any_bytes(data: bytes) -> None:
    try:
        items = unpack(data)
    except Malformed:
        return
    assert pack(*items) == data


@given(heads)
def test_decode__of_encode(head: Head) -> None:
    assert decode(Head, encode(head)) == head


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"kind":"head/1"}')
@example(b"\xff")
@example(b"1e999")
def test_decode__any_bytes(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(Head, data)


@given(heads, st.data())
def test_decode__one_byte_changed_is_another_message_or_none(head: Head, data: st.DataObject) -> None:
    good = encode(head)
    position = data.draw(st.integers(0, len(good) - 1))
    bad = good[:position] + bytes([data.draw(st.integers(0, 255))]) + good[position + 1 :]
    try:
        message = decode(Head, bad)
    except Malformed:
        return
    assert encode(message) == bad


@pytest.mark.parametrize("change", [" {}", "{} ", "{}\n", "{}{}"])
def test_decode__other_spellings_are_refused(change: str) -> None:
    head = Head(term=1, step=2, policy_step=1, manifest="0" * 64, groups_wanted=3, state="waiting", open_steps=())
    good = encode(head).decode()
    spellings = [
        change.replace("{}", good),
        json.dumps(json.loads(good)),
        good.replace('"term":1', '"term":1.0'),
        good.replace('"term":1', '"term":"1"'),
        good.replace('"term":1', '"term":true'),
        good.replace('"term":1', '"term":1,"term":1'),
        good.replace('"term":1', '"term":-1'),
        good.replace('"term":1', '"term":1,"x":1'),
        good.replace("term", "\\u0074erm"),
    ]
    for text in spellings:
        with pytest.raises(Malformed):
            decode(Head, text.encode())
