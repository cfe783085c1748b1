"""Accounting for a row store: the rows of each key, and each signer's total over all
keys, updated as rows come and go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dht.envelope import Envelope


@dataclass(slots=True)
class Holdings:
    """What each signer holds in the whole store, so that a full store evicts rows of the signer that fills it."""

    weight: Counter[str] = field(default_factory=Counter)  # bytes by signer
    places: dict[str, dict[tuple[str, str], None]] = field(default_factory=dict)  # keys and subkeys by signer
    total: int = 0
    changes: int = 0  # source of slot versions: a key's version never repeats, even if the key was empty in between

    def add(self, row: Envelope, size: int) -> None:
        self.weight[row.signer] += size
        self.places.setdefault(row.signer, {})[(row.key, row.subkey)] = None
        self.total += size

    def drop(self, row: Envelope, size: int) -> None:
        self.weight[row.signer] -= size
        self.total -= size
        del self.places[row.signer][(row.key, row.subkey)]
        if not self.places[row.signer]:
            del self.places[row.signer], self.weight[row.signer]


@dataclass(slots=True)
class Slot:
    """Rows of one key."""

    holdings: Holdings
    rows: dict[str, tuple[Envelope, bytes]] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)  # subject of each row, by subkey
    weight: Counter[str] = field(default_factory=Counter)  # bytes by signer
    number: Counter[str] = field(default_factory=Counter)  # rows by signer
    size: int = 0
    version: int = 0
    earliest: int = 2**64  # no row expires before this
    vetted: int = -1  # second of the last scan for strangers' rows

    def add(self, row: Envelope, data: bytes, about: str) -> None:
        self.drop(row.subkey)
        self.rows[row.subkey] = (row, data)
        self.about[row.subkey] = about
        self.weight[row.signer] += len(data)
        self.number[row.signer] += 1
        self.size += len(data)
        self.holdings.add(row, len(data))
        self.earliest = min(self.earliest, row.expiration)

    def drop(self, subkey: str) -> None:
        self.holdings.changes += 1
        self.version = self.holdings.changes
        held = self.rows.pop(subkey, None)
        if held is None:
            return
        row, data = held
        del self.about[subkey]
        self.size -= len(data)
        self.holdings.drop(row, len(data))
        self.weight[row.signer] -= len(data)
        self.number[row.signer] -= 1
        if not self.number[row.signer]:
            del self.number[row.signer], self.weight[row.signer]

    def expire(self, now: int) -> None:
        if now < self.earliest:
            return
        for subkey in [name for name, (row, _) in self.rows.items() if row.expiration <= now]:
            self.drop(subkey)
        self.earliest = min((row.expiration for row, _ in self.rows.values()), default=2**64)
