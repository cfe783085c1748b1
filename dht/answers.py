"""Reads peers' responses to row queries. Verifies each row separately; parses a repeated response only once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dht.bare import DHTID, PeerID, dht_pb2
from dht.envelope import Envelope
from dht.errors import Malformed
from dht.places import place_of_peer
from dht.record_validator import EnvelopeValidator, parse_rows
from dht.turns import let_others_run

LEFT_OUT = -1.0
"""Expiration in a "not found" result that means: the peer has rows for this key, but the
response had no space for them."""
MAX_BAD_ROWS = 16
"""Bad rows in one response after which the rest is ignored. An honest peer verifies rows before it
keeps them and sends no bad ones."""
MAX_ROWS = 2048
"""Most rows read for one key. No store keeps more, but anyone can sign any number with ids that cost nothing."""
REPLY_BYTES = 3 * 2**19
"""Most bytes of rows in one response; p2pd drops messages over 4 MiB (pitfall DHT-09)."""
KEY_BYTES = 5 * 2**19
"""Most bytes of rows for the first key that has any, which is always sent whole. A store keeps 1 MiB per key, and a
response carries each subkey twice."""
ANSWERS_KEPT, ROWS_KEPT = 1024, 65_536
"""Responses cached so that the same bytes need not be parsed again, and the total number of rows in them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One peer's rows for one key, and the neighbours it knows nearest to that key. `is_left_out`: the peer has rows,
    but the response was full."""

    rows: tuple[Envelope, ...]
    neighbours: dict[DHTID, PeerID]
    is_left_out: bool = False


class AnswerReader:
    """Parses the responses that one node receives. At most `most_neighbours` neighbours are taken from one response."""

    def __init__(self, validator: EnvelopeValidator, *, most_neighbours: int) -> None:
        self._validator, self._most_neighbours = validator, most_neighbours
        self._seen: dict[tuple[PeerID, DHTID], tuple[int | None, tuple[Envelope, ...]]] = {}  # by hash of the answer
        self._rows = 0  # total rows in `_seen`

    async def read_all(
        self, peer: PeerID, keys: Collection[DHTID], results: Sequence[dht_pb2.FindResult]
    ) -> dict[DHTID, Answer]:
        """What a peer returned for each key. Bad rows are skipped. Raises Malformed for a response that is too large,
        and whatever hivemind raises for other faults in it."""
        answers: dict[DHTID, Answer] = {}
        room = REPLY_BYTES
        for key, result in zip(keys, results, strict=False):
            if len(result.value) > (KEY_BYTES if room == REPLY_BYTES else max(0, room)):
                raise Malformed("a reply of more rows than one holds")
            room -= len(result.value)
            answers[key] = await self._read(peer, key, result)
        return answers

    async def _read(self, peer: PeerID, key: DHTID, result: dht_pb2.FindResult) -> Answer:
        peers = [_peer(neighbour) for neighbour in result.nearest_peer_ids[: self._most_neighbours]]
        neighbours = {place_of_peer(neighbour): neighbour for neighbour in peers}
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return Answer((), neighbours, is_left_out=result.expiration_time == LEFT_OUT)
        value = result.value
        seen, rows = self._seen.get((peer, key), (None, ()))
        if seen != hash(value):
            rows = await self._open_rows(key, value)
            self._keep((peer, key), hash(value), rows)
        return Answer(rows, neighbours)

    def _keep(self, place: tuple[PeerID, DHTID], seen: int, rows: tuple[Envelope, ...]) -> None:
        self._drop(place)
        while self._seen and (len(self._seen) >= ANSWERS_KEPT or self._rows + len(rows) > ROWS_KEPT):
            self._drop(next(iter(self._seen)))
        self._seen[place] = (seen, rows)
        self._rows += len(rows)

    def _drop(self, place: tuple[PeerID, DHTID]) -> None:
        _, rows = self._seen.pop(place, (None, ()))
        self._rows -= len(rows)

    async def _open_rows(self, key: DHTID, dictionary: bytes) -> tuple[Envelope, ...]:
        rows, bad, key_bytes = [], 0, key.to_bytes()
        try:
            items = parse_rows(dictionary)
        except Malformed:
            return ()
        for number, (subkey, value, expiration) in enumerate(items[:MAX_ROWS]):
            await let_others_run(number)
            try:
                rows.append(self._validator.open(key_bytes, subkey, value, expiration))
            except Malformed:
                bad += 1  # only this row is dropped; the others in the dictionary are unaffected (pitfall DHT-12)
                if bad == MAX_BAD_ROWS:
                    break  # verifying thousands of forged signatures would block the event loop
        return tuple(rows)


@lru_cache(maxsize=8192)
def _peer(raw: bytes) -> PeerID:
    return PeerID(raw)  # cached: every construction computes base58
