"""Rows that a node keeps for others, indexed by the hash of their key, and packed as responses carry them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dht.bare import DHTID
from dht.errors import Malformed
from dht.record_validator import EnvelopeValidator, pack_rows, wrap
from dht.rows import RowStore


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One row as nodes send it to each other, under the hash of its key. `expiration` is unix seconds."""

    key: DHTID
    subkey: str
    value: bytes
    expiration: float


_Packed = tuple[int, bytes, float]  # version of the rows, packed dictionary, latest expiration


class RowStorage:
    """A bounded `RowStore`, indexed by the key hashes that peers ask for. `clock` gives unix milliseconds."""

    def __init__(self, store: RowStore, validator: EnvelopeValidator, clock: Callable[[], int]) -> None:
        self.rows = store
        self._validator = validator
        self._clock = clock
        self._names: dict[int, str] = {}  # key hash -> key
        self._packed: dict[int, _Packed] = {}
        self.malformed = 0
        """Records offered that contained no valid row of the run."""

    def put(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Accept one row. True when it is held now. Never raises, whatever a peer sent."""
        try:
            row = self._validator.open(key.to_bytes(), subkey, value, expiration_time)
        except Malformed:
            self.malformed += 1
            return False
        kept = self.rows.put(row, self._clock()).kept
        if kept:
            self._names[key] = row.key
        return kept

    def packed(self, key: DHTID) -> tuple[bytes, float] | None:
        """A key's rows as a response carries them, with the latest expiration. Packed once per change."""
        name, now = self._names.get(key), self._clock()
        version = self.rows.version(name, now) if name is not None else 0
        if name is None or not version:
            return None
        cached = self._packed.get(key)
        if cached is None or cached[0] != version:
            items = [(row.subkey, wrap(data), row.expiration / 1000) for row, data in self.rows.rows(name, now)]
            cached = (version, pack_rows(items), max(expiration for _, _, expiration in items))
            self._packed[key] = cached
        return cached[1], cached[2]

    def key_ids(self) -> list[DHTID]:
        """Hashes of the keys that hold rows; drops the others from the index."""
        alive = set(self.rows.keys(self._clock()))
        self._names = {key: name for key, name in self._names.items() if name in alive}
        self._packed = {key: packed for key, packed in self._packed.items() if key in self._names}
        return [DHTID(key) for key in self._names]
