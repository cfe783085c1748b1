"""Which rows are accepted, and how many: the validation that every row passes, and a
bounded store. Pure: knows no network.

The hivemind storage and `MemoryDirectory` both use this store, so they refuse exactly the same things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NotRequired, TypedDict

from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import Malformed
from dht.holdings import Holdings, Slot

Membership = Callable[[Envelope], bool]
Subject = Callable[[Envelope], str]
MAX_NAME = 256  # characters of a key or a subkey
_REMEMBERED = 8192  # rows whose signature need not be checked again


def everyone(row: Envelope) -> bool:
    """Membership that admits every signer."""
    return True


def nobody(row: Envelope) -> str:
    """Subject function for rows that are about nobody."""
    return ""


class Keeping(TypedDict):
    """What a row store needs to know of a run, as arguments of `RowStore`. All stores of one node get the same."""

    lifetimes: Mapping[str, int]
    membership: NotRequired[Membership]
    settled: NotRequired[Membership]
    about: NotRequired[Subject]


class RowGate:
    """Parses and verifies rows of one run. A pure function of the bytes; rows seen before are not verified again."""

    def __init__(self, *, run: str, limits: Mapping[str, int]) -> None:
        self.run = run
        self._limits = dict(limits)
        self._largest = max(self._limits.values(), default=0)
        self._seen: dict[bytes, Envelope] = {}

    def open(self, data: bytes) -> Envelope:
        """The verified row in these bytes. Raises Malformed. Does not check expiry; the caller does."""
        row = self._seen.get(data)
        if row is None:
            row = self._check(data)
            if len(self._seen) >= _REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self._seen[bytes(data)] = row
        return row

    def _check(self, data: bytes) -> Envelope:
        row = from_bytes(data, limit=self._largest)
        if len(data) > self._limits.get(row.kind, -1):
            raise Malformed(f"row of kind {row.kind[:32]!r} is unknown here or too long")
        if row.run != self.run or not row.key.startswith(f"{self.run}/"):
            raise Malformed("row belongs to another run")
        if len(row.key) > MAX_NAME or len(row.subkey) > MAX_NAME:
            raise Malformed("row's key or subkey is too long")
        return row


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits on what one node keeps for others. A key's rows stay under 1 MiB, since a
    response carries 1.5 MiB of them."""

    keys: int = 20_000
    rows_per_key: int = 2048
    rows_per_signer: int = 512  # within one key
    bytes_per_key: int = 2**20
    total_bytes: int = 64 * 2**20
    slack_ms: int = 30_000  # tolerance beyond a kind's lifetime


class Outcome(Enum):
    """Result of offering a row to a store. HELD: the store already had exactly these bytes."""

    STORED = "stored"
    HELD = "held"
    OLDER = "older"
    EXPIRED = "expired"
    TOO_FAR = "expires_too_late"
    STRANGER = "not_a_member"
    SIGNER_FULL = "signer_full"
    KEY_FULL = "key_full"
    STORE_FULL = "store_full"

    @property
    def kept(self) -> bool:
        """Whether the store holds the row now."""
        return self in (Outcome.STORED, Outcome.HELD)


class RowStore:
    """Rows by key and subkey, within limits. Per subkey the highest sequence wins, whatever the order of arrival.

    `membership` decides which rows are accepted. `settled` decides which of them keep their place when a key is full,
    so that identities that cost nothing cannot crowd out those that cost something. `about` names the node a row is
    about, for signers that write many rows about others.
    """

    def __init__(
        self,
        *,
        lifetimes: Mapping[str, int],
        membership: Membership = everyone,
        settled: Membership = everyone,
        about: Subject = nobody,
        caps: Caps | None = None,
    ) -> None:
        self._lifetimes = dict(lifetimes)
        self._membership = membership
        self._settled = settled
        self._about = about
        self._caps = caps or Caps()
        self._slots: dict[str, Slot] = {}
        self._holdings = Holdings()
        self.counts: Counter[str] = Counter()
        """Rows by outcome, and `evicted`."""

    def __len__(self) -> int:
        return sum(len(slot.rows) for slot in self._slots.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows held."""
        return self._holdings.total

    def keys(self, now: int) -> list[str]:
        """Keys with at least one unexpired row."""
        self.sweep(now)
        return list(self._slots)

    def version(self, key: str, now: int) -> int:
        """A number that changes whenever the rows of the key do; 0 when there are none."""
        slot = self._fresh_slot(key, now)
        return slot.version if slot else 0

    def rows(self, key: str, now: int) -> list[tuple[Envelope, bytes]]:
        """Unexpired rows of a key, with their bytes."""
        slot = self._fresh_slot(key, now)
        return list(slot.rows.values()) if slot else []

    def held(self, key: str, now: int) -> Mapping[str, tuple[Envelope, bytes]]:
        """Like `rows`, by subkey. Returns the store's own mapping, not a copy."""
        slot = self._fresh_slot(key, now)
        return slot.rows if slot else {}

    def put(self, row: Envelope, now: int, data: bytes | None = None) -> Outcome:
        """Offer a verified row. The outcome says whether it is held now and, if not, why."""
        slot = self._slots.get(row.key)
        held = slot.rows.get(row.subkey) if slot else None
        if held is not None and held[0] is row and row.expiration > now:
            return Outcome.HELD  # common case: the same row read again
        outcome = self._put(row, to_bytes(row) if data is None else data, now)
        self.counts[outcome.value] += 1
        return outcome

    def sweep(self, now: int) -> None:
        """Drop expired rows and empty keys."""
        for key in list(self._slots):
            self._fresh_slot(key, now)

    def _put(self, row: Envelope, data: bytes, now: int) -> Outcome:
        slot = self._fresh_slot(row.key, now)
        held = slot.rows.get(row.subkey) if slot else None
        refusal = self._refusal(row, data, now, held)
        if refusal is not None:
            return refusal
        growth = len(data) - (len(held[1]) if held else 0)
        refusal = self._make_room_in_store(row, growth, is_new_key=slot is None)
        slot = slot or Slot(self._holdings)
        about = self._about(row)
        refusal = refusal or self._make_room(slot, row, about, growth, is_new=held is None, now=now)
        if refusal is not None:
            return refusal
        slot.add(row, data, about)
        self._slots[row.key] = slot
        return Outcome.STORED

    def _refusal(self, row: Envelope, data: bytes, now: int, held: tuple[Envelope, bytes] | None) -> Outcome | None:
        if held is not None and row.sequence <= held[0].sequence:
            return Outcome.HELD if data == held[1] else Outcome.OLDER
        if row.expiration <= now:
            return Outcome.EXPIRED
        if row.expiration > now + self._lifetimes.get(row.kind, 0) * 1000 + self._caps.slack_ms:
            return Outcome.TOO_FAR
        return None if self._membership(row) else Outcome.STRANGER

    def _make_room_in_store(self, row: Envelope, growth: int, *, is_new_key: bool) -> Outcome | None:
        """Free space in the whole store by evicting rows of the signer that holds the most bytes, or the most keys
        alone. Returns the refusal, or None."""
        holdings, signer = self._holdings, row.signer
        while holdings.total + growth > self._caps.total_bytes:
            heaviest = max(holdings.weight, key=holdings.weight.__getitem__, default=signer)
            if heaviest == signer or holdings.weight[heaviest] <= holdings.weight[signer] + growth:
                return Outcome.STORE_FULL
            self._evict_one_of(holdings.places[heaviest])
        while is_new_key and len(self._slots) >= self._caps.keys:
            widest = max(holdings.places, key=lambda name: len(holdings.places[name]), default=signer)
            places = holdings.places.get(widest, {})
            alone = [place for place in places if len(self._slots[place[0]].rows) == 1]
            if widest == signer or len(places) <= len(holdings.places.get(signer, ())) + 1 or not alone:
                return Outcome.STORE_FULL
            self._evict_one_of(alone)
        return None

    def _make_room(
        self, slot: Slot, row: Envelope, about: str, growth: int, *, is_new: bool, now: int
    ) -> Outcome | None:
        """Free space within a key. Rows of signers that are not members or not settled go first. Then the heaviest
        signer gives way to a lighter one, so a flood costs only the flooder, or the node that the rows are about."""
        caps = self._caps
        is_full = is_new and slot.number[row.signer] >= caps.rows_per_signer
        if is_full and not self._make_own_room(slot, row, about):
            return Outcome.SIGNER_FULL
        while slot.size + growth > caps.bytes_per_key or len(slot.rows) + is_new > caps.rows_per_key:
            if self._drop_strangers(slot, now):
                continue
            heaviest = max(slot.weight, key=slot.weight.__getitem__, default=row.signer)
            if heaviest != row.signer and slot.weight[heaviest] > slot.weight[row.signer] + growth:
                self._evict(slot, heaviest)
            elif not self._make_own_room(slot, row, about):
                return Outcome.KEY_FULL
        return None

    def _make_own_room(self, slot: Slot, row: Envelope, about: str) -> bool:
        """Within a signer's own rows, evict one about the subject it has the most rows about. A worker whose junk must
        be refused must not displace the verdicts on others. Returns whether a row was evicted."""
        theirs = [held for held, _ in slot.rows.values() if held.signer == row.signer and held.subkey != row.subkey]
        counts = Counter(slot.about[held.subkey] for held in theirs)
        most = max(counts, key=counts.__getitem__, default=about)
        if counts[most] <= counts[about] + 1:
            return False
        slot.drop(min((h for h in theirs if slot.about[h.subkey] == most), key=lambda held: held.expiration).subkey)
        self.counts["evicted"] += 1
        return True

    def _drop_strangers(self, slot: Slot, now: int) -> bool:
        """Evict rows of signers that are not settled, and rows accepted before the members were known. Scans at most
        once a second. Returns whether any were evicted."""
        if slot.vetted == now // 1000:
            return False
        slot.vetted = now // 1000
        rows = [row for row, _ in slot.rows.values()]
        strangers = [row.subkey for row in rows if not (self._membership(row) and self._settled(row))]
        for subkey in strangers:
            slot.drop(subkey)
        self.counts["evicted"] += len(strangers)
        return bool(strangers)

    def _evict(self, slot: Slot, signer: str) -> None:
        theirs = (row for row, _ in slot.rows.values() if row.signer == signer)
        slot.drop(min(theirs, key=lambda row: row.expiration).subkey)
        self.counts["evicted"] += 1

    def _evict_one_of(self, places: Iterable[tuple[str, str]]) -> None:
        """Evict the row that expires first; remove its key if it was the last."""
        key, subkey = min(places, key=lambda place: self._slots[place[0]].rows[place[1]][0].expiration)
        self._slots[key].drop(subkey)
        if not self._slots[key].rows:
            del self._slots[key]
        self.counts["evicted"] += 1

    def _fresh_slot(self, key: str, now: int) -> Slot | None:
        slot = self._slots.get(key)
        if slot is None:
            return None
        slot.expire(now)
        if not slot.rows:
            del self._slots[key]
            return None
        return slot


def newest(rows: Iterable[Envelope], now: int) -> list[Envelope]:
    """The unexpired row with the highest sequence per subkey, ordered by subkey."""
    best: dict[str, Envelope] = {}
    for row in rows:
        held = best.get(row.subkey)
        if row.expiration > now and (held is None or row.sequence > held.sequence):
            best[row.subkey] = row
    return [best[subkey] for subkey in sorted(best)]
