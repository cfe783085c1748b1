"""Rows kept for others, by the hash of their key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dht.bare import DHTID
from dht.envelope import Envelope, to_bytes
from dht.memory import FakeClock
from dht.record_validator import EnvelopeValidator, parse_rows, wrap
from dht.rows import RowStore
from dht.storage import RowStorage

RUN = "ab" * 32
MakeRow = Callable[..., Envelope]


@pytest.fixture
def storage(clock: FakeClock) -> RowStorage:
    validator = EnvelopeValidator(run=RUN, limits={"node/1": 4096})
    return RowStorage(RowStore(lifetimes={"node/1": 90}), validator, clock)


def put(storage: RowStorage, row: Envelope) -> bool:
    return storage.put(DHTID.generate(row.key), row.subkey, wrap(to_bytes(row)), row.expiration / 1000)


def test_packed__holds_what_was_put(storage: RowStorage, make_row: MakeRow) -> None:
    row = make_row()
    assert put(storage, row)
    packed = storage.packed(DHTID.generate(row.key))
    assert packed is not None
    assert parse_rows(packed[0]) == [(row.subkey, wrap(to_bytes(row)), row.expiration / 1000)]
    assert packed[1] == row.expiration / 1000
    assert storage.key_ids() == [DHTID.generate(row.key)]


def test_put__garbage_is_counted_not_raised__dht_11(storage: RowStorage) -> None:
    assert not storage.put(DHTID.generate("x"), "y", b"\xc1", 9e9)
    assert storage.malformed == 1


def test_packed__follows_changes_and_expiry(storage: RowStorage, make_row: MakeRow, clock: FakeClock) -> None:
    key = DHTID.generate(make_row().key)
    sizes = []
    for row in (make_row(1), make_row(2)):
        put(storage, row)
        packed = storage.packed(key)
        assert packed is not None
        sizes.append(len(parse_rows(packed[0])))
    assert sizes == [1, 2]
    clock.advance(61)
    assert storage.packed(key) is None
    assert storage.key_ids() == []
