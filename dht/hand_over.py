"""Gives a node that comes, or comes back, the rows it should keep: else they would be missing there until their signers
publish them again.
"""

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
"""Not sooner than this the same node is given its rows once more."""
MOST_TO_GIVE = 32
"""Nodes that wait for their rows; the rest of a flood of ids gets what signers publish again."""
_PEERS_KEPT = 2048


class HandOver:
    """New ids cost nothing: one node at a time is given its rows."""

    def __init__(self, protocol: RowProtocol) -> None:
        self._protocol = protocol
        self._given: dict[PeerID, float] = {}  # and when
        self._giving = asyncio.Lock()
        self._waiting = 0

    async def give(self, place: DHTID, peer: PeerID) -> None:
        """Send a node the rows it should keep, if of all nodes known we are nearest to them."""
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
            self._given.pop(peer, None)  # when it answers again, this is done again

    async def _rows_for(self, place: DHTID) -> list[PackedRow]:
        """Of thousands of keys each is looked at, for whoever comes with a new id: others have their turn meanwhile."""
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
