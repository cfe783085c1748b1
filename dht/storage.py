"""hivemind's local storage, kept in a bounded `RowStore`. Put in place of `protocol.storage` and `protocol.cache`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dht.bare import DHTID, DHTLocalStorage, DictionaryDHTValue, ValueWithExpiration
from dht.errors import Malformed
from dht.record_validator import EnvelopeValidator, pack_rows, wrap
from dht.rows import RowStore

_Packed = tuple[int, bytes, float]  # version of the rows, packed dictionary, latest expiration


class RowStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is untyped
    """Signed rows by key hash and subkey; refuses plain values. `clock` gives unix milliseconds."""

    def __init__(self, store: RowStore, validator: EnvelopeValidator, clock: Callable[[], int]) -> None:
        super().__init__()
        self.rows = store
        self._validator = validator
        self._clock = clock
        self._names: dict[int, str] = {}  # key hash -> key
        self._packed: dict[int, _Packed] = {}
        self.refusals: Counter[str] = Counter()

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Take a row; a value without a subkey is refused (pitfall DHT-15)."""
        if isinstance(subkey, str):
            return self.store_subkey(key, subkey, value, expiration_time)
        self.refusals["plain_value"] += 1
        return False

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Take one row. True when it is held now; never raises on a peer's data."""
        try:
            row = self._validator.open(key.to_bytes(), subkey, value, expiration_time)
        except Malformed:
            self.refusals["malformed"] += 1
            return False
        kept = self.rows.put(row, self._clock()).kept
        if kept:
            self._names[key] = row.key
        return kept

    def packed(self, key: DHTID) -> tuple[bytes, float] | None:
        """A key's rows as they go into a reply, with the latest expiration; packed once per change."""
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

    def get(self, key: DHTID) -> Any:
        """A key's rows in hivemind's own types; None when there are none."""
        packed = self.packed(key)
        if packed is None:
            return None
        now = self._clock()
        dictionary = DictionaryDHTValue()
        for row, data in self.rows.rows(self._names[key], now):
            dictionary.store(row.subkey, wrap(data), row.expiration / 1000)
        return ValueWithExpiration(dictionary, packed[1])

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Every key with its rows."""
        return ((key, item) for key in self.key_ids() if (item := self.get(key)) is not None)

    def key_ids(self) -> list[DHTID]:
        """Hashes of the keys that hold rows; forgets the others."""
        alive = set(self.rows.keys(self._clock()))
        self._names = {key: name for key, name in self._names.items() if name in alive}
        self._packed = {key: packed for key, packed in self._packed.items() if key in self._names}
        return [DHTID(key) for key in self._names]

    def __contains__(self, key: DHTID) -> bool:
        return self.packed(key) is not None

    def __len__(self) -> int:
        return len(self.key_ids())

    def __bool__(self) -> bool:
        return bool(self._names)


class NoCache(DHTLocalStorage):  # type: ignore[misc]  # hivemind is untyped
    """A cache that keeps nothing: peers may write into hivemind's cache without limit (pitfall DHT-16)."""

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Refuse."""
        return False

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Refuse."""
        return False
