"""Hands rows to a node that joins or returns. Without this it would lack the rows it should keep
until their signers republish them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from dht.bare import DHTID, PeerID
from dht.record_validator import parse_rows
from dht.storage import PackedRow
from dht.turns import let_others_run

if TYPE_CHECKING:
    from dht.protocol import RowProtocol

AGAIN_SECONDS = 60.0
"""Minimum time before the same node is handed its rows again."""
MOST_TO_GIVE = 32
"""Most nodes that may wait for their rows. In a flood of new ids, the others wait until the signers republish."""
_PEERS_KEPT = 2048


class HandOver:
    """Hands rows to one node at a time, because creating new ids costs nothing."""

    def __init__(self, protocol: RowProtocol) -> None:
        self._protocol = protocol
        self._given: dict[PeerID, float] = {}  # time of the last hand-over
        self._giving = asyncio.Lock()
        self._waiting = 0

    async def give(self, place: DHTID, peer: PeerID) -> None:
        """Send a node the rows it should keep, if we are the nearest known node to their keys."""
        now = time.monotonic()
        was_given = now - self._given.get(peer, -AGAIN_SECONDS) < AGAIN_SECONDS
        if was_given or self._protocol.is_hidden or self._waiting >= MOST_TO_GIVE:
            return
        if len(self._given) > _PEERS_KEPT:
            self._given.clear()
        self._given[peer] = now
        self._waiting += 1
        try:
            async with self._giving:
                rows = await self._rows_for(place)
        finally:
            self._waiting -= 1
        if rows and await self._protocol.send_rows(peer, rows) is None:
            self._given.pop(peer, None)  # try again when it next answers

    async def _rows_for(self, place: DHTID) -> list[PackedRow]:
        """The rows a node should keep. It examines every key, possibly thousands, for every new
        id, so it yields to other tasks."""
        rows = []
        for number, key in enumerate(self._protocol.row_storage.key_ids()):
            await let_others_run(number)
            if self._is_ours_to_give(key, place):
                rows += self._rows(key)
        return rows

    def _is_ours_to_give(self, key: DHTID, place: DHTID) -> bool:
        protocol = self._protocol
        count = protocol.num_replicas
        nearest = protocol.routing_table.get_nearest_neighbors(key, count + 1)
        others = [node_id for node_id, _ in nearest if node_id != place][:count]
        if not others:
            return True
        distances = [node_id.xor_distance(key) for node_id in others]
        is_theirs = len(others) < count or place.xor_distance(key) < distances[-1]
        return is_theirs and bool(protocol.node_id.xor_distance(key) < distances[0])

    def _rows(self, key: DHTID) -> list[PackedRow]:
        packed = self._protocol.row_storage.packed(key)
        return [PackedRow(key, *item) for item in parse_rows(packed[0])] if packed else []
