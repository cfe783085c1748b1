"""Dials nodes of the run that are announced but absent from our DHT, so that a split DHT becomes one again.

The boards carry the records of both halves, and so do rows that a half still holds from before the split. Seeds are
dialled forever anyway (`dht.upkeep`); this finds the other nodes even when all seeds are dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import structlog

from dht.directory import HivemindDirectory
from dht.envelope import Envelope
from dht.errors import Malformed, PeerError, TransportError
from dht.peers import parse_peer
from node.defaults import MEETING_SECONDS
from roles.messages import NodeRecord, Role, nodes_key, open_row
from roles.ports import Directory

log = structlog.get_logger()

SERVING: tuple[Role, ...] = ("relay", "validator", "trainer")
"""Roles whose nodes listen."""
AT_ONCE, STRANGERS_AT_ONCE = 8, 1
"""Nodes dialled per comparison, and strangers among them. In a large network no node needs to know all others.
Strangers are limited because a key costs nothing, and its record must not decide whom everybody dials."""
WHOLE_TABLE = 20
"""A routing table smaller than this contains every node there is."""


class Meeting:
    """Compares the nodes that announce themselves with those in the DHT. `rows` reads boards and DHT together.
    `is_member` says whether an id is registered on the ledger or an operator's."""

    def __init__(
        self,
        directory: HivemindDirectory,
        rows: Directory,
        *,
        run: str,
        node: str,
        is_member: Callable[[str], bool],
    ) -> None:
        self._directory, self._rows, self._run, self._node = directory, rows, run, node
        self._is_member = is_member
        self._is_split = False

    async def run(self) -> None:
        """Compare every `MEETING_SECONDS` until cancelled."""
        while True:
            await asyncio.sleep(MEETING_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Compare once, and dial some of the nodes that are missing."""
        keys = [nodes_key(self._run, role) for role in SERVING]
        try:
            found = await self._rows.read(keys)
        except TransportError:
            return
        rows = (row for key in keys for row in found.get(key, ()))
        records = [record for row in rows if (record := self._record_in(row)) is not None]
        met = {peer.node for peer in self._directory.peers() if peer.is_in_table}
        unmet = [record for record in records if record.node not in met]
        members = [record for record in unmet if self._is_member(record.node)]
        strangers = [record for record in unmet if not self._is_member(record.node)]
        chosen = random.sample(members, min(AT_ONCE, len(members)))
        chosen += random.sample(strangers, min(STRANGERS_AT_ONCE, len(strangers), AT_ONCE - len(chosen)))
        for record in chosen:
            self._directory.add_peers(_own_addresses(record))
        self._say(len(members), sum(self._is_member(record.node) for record in records), len(met))

    def _record_in(self, row: Envelope) -> NodeRecord | None:
        try:
            record = open_row(row, run=self._run, buckets=1)
        except PeerError:
            return None
        if not isinstance(record, NodeRecord) or record.node == self._node or record.state != "online":
            return None
        return record if record.addresses else None

    def _say(self, unmet: int, known: int, table: int) -> None:
        is_split = table < WHOLE_TABLE and 2 * unmet > known
        if is_split and not self._is_split:
            log.warning("directory.split", unmet=unmet, known=known)
        elif self._is_split and not unmet:
            log.info("directory.whole", known=known)
        self._is_split = is_split or (self._is_split and unmet > 0)


def _own_addresses(record: NodeRecord) -> Sequence[str]:
    """The record's addresses that name the node itself. A record must not make others dial a third node."""
    found = []
    for address in record.addresses:
        try:
            if parse_peer(address).node == record.node:
                found.append(address)
        except Malformed:
            continue
    return found
