"""Which peers to ask for a key, and how to ask few of them: one call to a peer for all the keys it is asked for.

hivemind's own `get_many` asks every peer for the square root of the keys at a time; nine nodes that read twelve keys
twice a second would spend both cores on it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

from dht.bare import DHTID, DHTNode, PeerID
from dht.envelope import Envelope
from dht.protocol import MAX_KEYS, Answer, RowProtocol

COPIES_READ = 2
FULL_READ_EVERY = 8
_LOOKUP_SECONDS = 60.0  # how long a search for a key's nearest peers stays good in a large network
_MAX_LOOKUPS = 4096
_BIG_ANSWER = 2**20  # bytes of rows in one reply; beyond it the peer may have left keys out


class Lookup:
    """Reads over one DHT node."""

    def __init__(self, node: DHTNode, *, seed: int | None = None) -> None:
        self._node = node
        self._protocol: RowProtocol = node.protocol
        self._random = random.Random(seed)
        self._searched: dict[DHTID, tuple[float, list[PeerID]]] = {}
        self._reads = 0
        self.calls = 0
        """Calls made to peers."""

    async def nearest(self, key: DHTID) -> list[PeerID]:
        """The peers that keep a key, nearest first, at most `num_replicas`; ourselves left out."""
        count = self._protocol.num_replicas
        table = self._protocol.routing_table
        if len(table.uid_to_peer_id) < self._protocol.bucket_size:  # we know the whole network
            return [peer for _, peer in table.get_nearest_neighbors(key, count, exclude=self._node.node_id)]
        found, peers = self._searched.get(key, (0.0, []))
        if time.monotonic() - found > _LOOKUP_SECONDS or not peers:
            peers = await self._search(key, count)
        return peers

    async def _search(self, key: DHTID, count: int) -> list[PeerID]:
        nodes = await self._node.find_nearest_nodes([key], k_nearest=count, beam_size=2 * count, exclude_self=True)
        peers = list(nodes[key].values())
        if len(self._searched) >= _MAX_LOOKUPS:
            self._searched.clear()
        self._searched[key] = (time.monotonic(), peers)
        return peers

    async def read(self, keys: Sequence[DHTID]) -> tuple[dict[DHTID, list[Envelope]], int]:
        """Rows of each key from a few of its peers, and how many peers answered. Rows may repeat."""
        self._reads += 1
        copies = self._protocol.num_replicas if self._reads % FULL_READ_EVERY == 1 else COPIES_READ
        replicas = {key: await self.nearest(key) for key in keys}
        rows: dict[DHTID, list[Envelope]] = {key: [] for key in keys}
        answered: dict[DHTID, set[PeerID]] = {key: set() for key in keys}
        peers_heard: set[PeerID] = set()
        for _ in range(2):  # a second round where nobody answered in the first
            left = {
                key: [p for p in peers if p not in self._node.blacklist]
                for key, peers in replicas.items()
                if not answered[key]
            }
            plan = _plan(left, copies, self._random)
            if not plan:
                break
            for peer, answers in await self._ask(plan):
                peers_heard.add(peer)
                for key, answer in answers.items():
                    rows[key].extend(answer.rows)
                    answered[key].add(peer)
        return rows, len(peers_heard)

    async def _ask(self, plan: Mapping[PeerID, list[DHTID]]) -> list[tuple[PeerID, dict[DHTID, Answer]]]:
        async with asyncio.TaskGroup() as group:
            tasks = {peer: group.create_task(self.ask(peer, keys)) for peer, keys in plan.items()}
        return [(peer, answers) for peer, task in tasks.items() if (answers := task.result()) is not None]

    async def ask(self, peer: PeerID, keys: Sequence[DHTID]) -> dict[DHTID, Answer] | None:
        """One peer's answers; keys it may have left out for want of room are asked for again one by one."""
        answers: dict[DHTID, Answer] = {}
        for start in range(0, len(keys), MAX_KEYS):
            self.calls += 1
            part = await self._protocol.fetch(peer, keys[start : start + MAX_KEYS])
            if part is None:
                self._node.blacklist.register_failure(peer)
                return None
            answers |= part
        self._node.blacklist.register_success(peer)
        if sum(answer.size for answer in answers.values()) > _BIG_ANSWER:
            for key in [key for key, answer in answers.items() if not answer.size]:
                self.calls += 1
                answers |= await self._protocol.fetch(peer, [key]) or {}
        return answers


def _plan(replicas: Mapping[DHTID, Sequence[PeerID]], copies: int, rng: random.Random) -> dict[PeerID, list[DHTID]]:
    """Few peers that together keep `copies` of every key, drawn anew each time so that no replica goes unread for long."""
    plan: dict[PeerID, list[DHTID]] = {}
    wanted = {key: min(copies, len(peers)) for key, peers in replicas.items()}
    holders: dict[PeerID, list[DHTID]] = {}
    for key, peers in replicas.items():
        for peer in peers:
            holders.setdefault(peer, []).append(key)
    while holders and any(wanted.values()):
        luck = {peer: rng.uniform(0.5, 1.0) for peer in holders}
        best = max(holders, key=lambda peer: luck[peer] * sum(wanted[key] > 0 for key in holders[peer]))
        keys = [key for key in holders.pop(best) if wanted[key] > 0]
        for key in keys:
            wanted[key] -= 1
        if keys:
            plan[best] = keys
    return plan
