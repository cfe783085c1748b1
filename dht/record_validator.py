"""Signed rows inside the records of hivemind's messages: how they are packed, and how they
are validated from their bytes alone.

A record is (20-byte key hash, packed subkey, value, expiration). Our value is a signed row. Hash, subkey and expiration
must be those the row was signed with, so nobody can move a row or extend its lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgpack

from dht.bare import DHTID
from dht.envelope import Envelope
from dht.errors import Malformed
from dht.rows import RowGate

DICTIONARY_EXT = 0x50  # hivemind's msgpack extension type for a dictionary of rows


@lru_cache(maxsize=4096)
def key_hash(key: str) -> bytes:
    """hivemind's 20-byte hash of a key."""
    digest: bytes = DHTID.generate(key).to_bytes()
    return digest


def wrap(data: bytes | str) -> bytes:
    """A row's bytes, or its subkey, as hivemind packs them."""
    packed: bytes = msgpack.packb(data, use_bin_type=True)
    return packed


def unwrap(value: bytes) -> bytes:
    """Extract a row's bytes from a hivemind value. Raises Malformed for anything `wrap` would not have written."""
    data = _unpack(value)
    if not isinstance(data, bytes) or wrap(data) != value:
        raise Malformed("value is not plain bytes")
    return data


def unwrap_subkey(packed: bytes) -> str:
    """The text of a packed subkey. Raises Malformed for anything else: a plain value has
    the subkey None (pitfall DHT-15)."""
    subkey = _unpack(packed)
    if not isinstance(subkey, str) or wrap(subkey) != packed:
        raise Malformed("subkey is not a plain text")
    return subkey


def _unpack(packed: bytes) -> object:
    try:
        data: object = msgpack.unpackb(packed, raw=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise Malformed("what was packed does not unpack") from error
    return data


def parse_rows(dictionary: bytes) -> list[tuple[str, bytes, float]]:
    """(subkey, value, expiration) for each row in a packed dictionary. Entries that cannot be our
    rows are skipped. Raises Malformed."""
    try:
        extension = msgpack.unpackb(dictionary, raw=False)
        if not isinstance(extension, msgpack.ExtType) or extension.code != DICTIONARY_EXT:
            raise Malformed("reply is not a dictionary of rows")
        _, _, items = msgpack.unpackb(extension.data, raw=False)
        return [item for item in map(_as_row, items) if item is not None]
    except (ValueError, TypeError, RecursionError) as error:
        raise Malformed("dictionary of rows does not unpack") from error


def pack_rows(items: list[tuple[str, bytes, float]]) -> bytes:
    """Pack (subkey, value, expiration) items into a dictionary, as hivemind does."""
    latest = max((expiration for _, _, expiration in items), default=float("-inf"))
    body = msgpack.packb([float("inf"), latest, items], use_bin_type=True)
    packed: bytes = msgpack.packb(msgpack.ExtType(DICTIONARY_EXT, body))
    return packed


def _as_row(item: object) -> tuple[str, bytes, float] | None:
    if not isinstance(item, list) or len(item) != 3:
        return None
    subkey, value, expiration = item
    if isinstance(subkey, str) and isinstance(value, bytes) and isinstance(expiration, float):
        return subkey, value, expiration
    return None


class EnvelopeValidator:
    """Validates signed rows of one run. `limits` is the largest row of each kind, in bytes."""

    def __init__(self, *, run: str, limits: Mapping[str, int]) -> None:
        self._gate = RowGate(run=run, limits=limits)

    def open(self, key: bytes, subkey: str, value: bytes, expiration_time: float) -> Envelope:
        """The row in a record. Raises Malformed."""
        row = self._gate.open(unwrap(value))
        if row.subkey != subkey or row.expiration / 1000 != expiration_time:
            raise Malformed("record's subkey or expiration is not the signed one")
        if key_hash(row.key) != key:
            raise Malformed("record's key is not the signed one")
        return row
