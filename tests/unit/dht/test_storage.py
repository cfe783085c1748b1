"""hivemind's storage, bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dht.bare import DHTID
from dht.envelope import Envelope, to_bytes
from dht.memory import FakeClock
from dht.record_validator import EnvelopeValidator, parse_rows, wrap
from dht.rows import RowStore
from dht.storage import NoCache, RowStorage

RUN = "ab" * 32
MakeRow = Callable[..., Envelope]


@pytest.fixture
def storage(clock: FakeClock) -> RowStorage:
    validator = EnvelopeValidator(run=RUN, limits={"node/1": 4096})
    return RowStorage(RowStore(lifetimes={"node/1": 90}), validator, clock)


def put(storage: RowStorage, row: Envelope) -> bool:
    return storage.store_subkey(DHTID.generate(row.key), row.subkey, wrap(to_bytes(row)), row.expiration / 1000)


def test_store_subkey__comes_back_in_hiveminds_types(storage: RowStorage, make_row: MakeRow) -> None:
    row = make_row()
    assert put(storage, row)
    item = storage.get(DHTID.generate(row.key))
    assert item.expiration_time == row.expiration / 1000
    assert storage.packed(DHTID.generate(row.key)) is not None
    assert DHTID.generate(row.key) in storage
    assert len(storage) == 1


def test_store__plain_values_are_refused__dht_15(storage: RowStorage, make_row: MakeRow) -> None:
    row = make_row()
    key = DHTID.generate(row.key)
    assert not storage.store(key, wrap(to_bytes(row)), 9e9)
    assert put(storage, row)
    assert not storage.store(key, b"\xc0", 9e12)
    assert storage.packed(key) is not None
    assert storage.refusals["plain_value"] == 2


def test_store_subkey__garbage_is_counted_not_raised__dht_11(storage: RowStorage) -> None:
    assert not storage.store_subkey(DHTID.generate("x"), "y", b"\xc1", 9e9)
    assert storage.refusals["malformed"] == 1


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


def test_cache__keeps_nothing__dht_16(make_row: MakeRow) -> None:
    cache = NoCache()
    assert not cache.store(DHTID.generate("x"), b"\xc0", 9e12)
    assert not cache.store_subkey(DHTID.generate("x"), "y", b"\xc0", 9e12)
    assert cache.get(DHTID.generate("x")) is None
