"""Chooses which peers to ask for a key, and keeps the number of calls low: one call per
peer for all the keys it is asked for.

hivemind's own `get_many` asks every peer for the square root of the keys at a time. Nine nodes that read twelve keys
twice a second would spend both cores on it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from dht.answers import Answer
from dht.bare import DHTID, DHTNode, PeerID
from dht.envelope import Envelope
from dht.places import place_of_peer
from dht.protocol import CALL_SECONDS, MAX_KEYS, RowProtocol

WIDE_SECONDS = 4.0
"""Interval at which a key is read from WIDE_COPIES of its peers, even if we keep it ourselves. Other reads ask one
peer. Rows once read are remembered."""
WIDE_COPIES = 3
PATIENCE_SECONDS = 1.5
ANCHORS = 2
"""How many of the nodes that the run itself names must be among a key's peers, wherever they are in the DHT."""
_LOOKUP_SECONDS = 60.0  # how long a search for a key's nearest peers stays valid in a large network
_MAX_LOOKUPS = 4096
_MAX_ROUNDS = 20
_AT_ONCE = 4


_Call = asyncio.Task[dict[DHTID, Answer] | None]


@dataclass(slots=True)
class _Search:
    """State of one read."""

    replicas: dict[DHTID, list[PeerID]]
    asked: set[tuple[DHTID, PeerID]] = field(default_factory=set)
    answered: set[DHTID] = field(default_factory=set)
    rows: dict[DHTID, list[Envelope]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = {key: [] for key in self.replicas}

    def unasked(self, blacklist: Container[PeerID]) -> dict[DHTID, list[PeerID]]:
        """Peers not asked yet, by key."""
        return {
            key: [peer for peer in peers if (key, peer) not in self.asked and peer not in blacklist]
            for key, peers in self.replicas.items()
        }

    async def collect(self, calls: set[_Call], seconds: float, *, all_of_them: bool) -> set[_Call]:
        """Collect responses for at most `seconds`. Stops early when every call has finished or, unless `all_of_them`,
        once every key asked for has a response. Returns the calls still open."""
        deadline = time.monotonic() + seconds
        while calls and (left := deadline - time.monotonic()) > 0:
            if not all_of_them and self.answered >= {key for key, _ in self.asked}:
                break
            done, calls = await asyncio.wait(calls, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                self._take(call)
        return calls

    def _take(self, call: _Call) -> None:
        answers = None if call.cancelled() else call.result()
        for key, answer in (answers or {}).items():
            self.rows[key].extend(answer.rows)
            self.answered.add(key)


class Lookup:
    """Reads over one DHT node."""

    def __init__(self, node: DHTNode) -> None:
        self._node = node
        self._protocol: RowProtocol = node.protocol
        self._random = random.Random()
        self._searched: dict[DHTID, tuple[float, list[PeerID]]] = {}
        self._read_widely: dict[DHTID, float] = {}
        self.calls = 0
        """Calls made to peers."""
        self.anchors: frozenset[PeerID] = frozenset()
        """Nodes whose ids nobody can forge: the run's operators."""

    async def replicas(self, key: DHTID) -> list[PeerID]:
        """The peers that keep a key: the nearest ones, and the nearest operators of the run that we know."""
        known = self._protocol.routing_table.uid_to_peer_id.values()
        anchors = [peer for peer in known if peer in self.anchors]
        return with_anchors(key, await self.nearest(key), anchors)

    async def nearest(self, key: DHTID) -> list[PeerID]:
        """The peers nearest to a key, nearest first, at most `num_replicas`, excluding ourselves."""
        count = self._protocol.num_replicas
        table = self._protocol.routing_table
        if len(table.uid_to_peer_id) < self._protocol.bucket_size:  # the table holds the whole network
            return [peer for _, peer in table.get_nearest_neighbors(key, count, exclude=self._node.node_id)]
        found, peers = self._searched.get(key, (0.0, []))
        if time.monotonic() - found > _LOOKUP_SECONDS or not peers:
            peers = await self.search(key, count=count, width=2 * count)
            if len(self._searched) >= _MAX_LOOKUPS:
                self._searched.clear()
            self._searched[key] = (time.monotonic(), peers)
        return peers

    async def search(self, place: DHTID, *, count: int, width: int) -> list[PeerID]:
        """Iterative lookup: ask ever nearer nodes for their neighbours until the `width` nearest have
        answered. Returns the `count` nearest.

        Every node that answers enters the routing table. (hivemind's own search leaks tasks when it is cancelled.)
        """
        table = self._protocol.routing_table
        known = dict(table.get_nearest_neighbors(place, self._protocol.bucket_size, exclude=self._node.node_id))
        answered: set[DHTID] = set()
        for _ in range(_MAX_ROUNDS):
            nearest = sorted(known, key=place.xor_distance)[:width]
            to_ask = [node_id for node_id in nearest if node_id not in answered][:_AT_ONCE]
            if not to_ask:
                break
            async with asyncio.TaskGroup() as group:
                calls = {node_id: group.create_task(self.ask(known[node_id], [place])) for node_id in to_ask}
            for node_id, call in calls.items():
                answers = call.result()
                if answers is None:
                    del known[node_id]
                    continue
                answered.add(node_id)
                for neighbour, peer in answers[place].neighbours.items() if place in answers else ():
                    if neighbour != self._node.node_id and peer not in self._node.blacklist:
                        known.setdefault(neighbour, peer)
        return [known[node_id] for node_id in sorted(answered & set(known), key=place.xor_distance)[:count]]

    async def read(self, keys: Sequence[DHTID]) -> tuple[dict[DHTID, list[Envelope]], bool]:
        """Rows of each key from a few of its peers. The second value is True when a peer
        answered, or when none had to be asked.

        Rows may repeat. For keys that we keep ourselves, peers are asked only now and then,
        because writers store those rows here.
        """
        search = _Search({key: await self.replicas(key) for key in keys})
        wanted = {key: self._copies(key, peers) for key, peers in search.replicas.items()}
        calls: set[_Call] = set()
        for patience in (PATIENCE_SECONDS, CALL_SECONDS):  # do not wait for slow peers while others can answer
            plan = plan_calls(search.unasked(self._node.blacklist), wanted, self._random)
            calls |= {self._start(search, peer, asked) for peer, asked in plan.items()}
            calls = await search.collect(calls, patience, all_of_them=patience == PATIENCE_SECONDS)
            wanted = {key: copies if key not in search.answered else 0 for key, copies in wanted.items()}
            if not any(wanted.values()):
                break
        return search.rows, bool(search.answered) or not search.asked

    def _start(self, search: _Search, peer: PeerID, keys: list[DHTID]) -> _Call:
        for key in keys:
            search.asked.add((key, peer))
        return self._protocol.start(self.ask(peer, keys))

    def _copies(self, key: DHTID, peers: Sequence[PeerID]) -> int:
        now = time.monotonic()
        if now - self._read_widely.get(key, -WIDE_SECONDS) >= WIDE_SECONDS:
            if len(self._read_widely) >= _MAX_LOOKUPS:
                self._read_widely.clear()
            self._read_widely[key] = now
            return WIDE_COPIES
        return 0 if self._is_kept_here(key, peers) else 1

    def _is_kept_here(self, key: DHTID, peers: Sequence[PeerID]) -> bool:
        if self._protocol.is_hidden:
            return False
        peers = peers[: self._protocol.num_replicas]  # the run's operators come after these
        if len(peers) < self._protocol.num_replicas:
            return True
        ours = self._node.node_id.xor_distance(key)
        return bool(ours < max(place_of_peer(peer).xor_distance(key) for peer in peers))

    async def ask(self, peer: PeerID, keys: Sequence[DHTID]) -> dict[DHTID, Answer] | None:
        """One peer's responses; None when it does not answer. Keys left out because the response was full
        are asked for again one by one."""
        answers: dict[DHTID, Answer] = {}
        for start in range(0, len(keys), MAX_KEYS):
            self.calls += 1
            part = await self._protocol.fetch(peer, keys[start : start + MAX_KEYS])
            if part is None:
                self._node.blacklist.register_failure(peer)
                return None
            answers |= part
        self._node.blacklist.register_success(peer)
        for key in [key for key, answer in answers.items() if answer.is_left_out]:
            self.calls += 1
            answers |= await self._protocol.fetch(peer, [key]) or {}
        return answers


def with_anchors(key: DHTID, peers: Sequence[PeerID], anchors: Sequence[PeerID]) -> list[PeerID]:
    """The nearest peers, plus as many of the run's own nodes as needed to have `ANCHORS` of them.

    Anyone can generate ids until a handful are nearer to a key than all other nodes, and then withhold its rows. Nobody
    can forge an id that the ledger lists.
    """
    lacking = max(0, ANCHORS - sum(peer in anchors for peer in peers))
    others = [peer for peer in anchors if peer not in peers]
    others.sort(key=lambda peer: place_of_peer(peer).xor_distance(key))
    return [*peers, *others[:lacking]]


def plan_calls(
    replicas: Mapping[DHTID, Sequence[PeerID]], copies: Mapping[DHTID, int], rng: random.Random
) -> dict[PeerID, list[DHTID]]:
    """Choose a small set of peers that together give the wanted copies of every key. It is drawn at random each time,
    so that no peer goes unread for long."""
    wanted = {key: min(copies[key], len(peers)) for key, peers in replicas.items() if copies[key] and peers}
    holders: dict[PeerID, list[DHTID]] = {}
    for key in wanted:
        for peer in replicas[key]:
            holders.setdefault(peer, []).append(key)
    luck = {peer: rng.uniform(0.5, 1.0) for peer in holders}
    plan: dict[PeerID, list[DHTID]] = {}
    while any(wanted.values()):
        best = max(holders, key=lambda peer: luck[peer] * sum(wanted[key] > 0 for key in holders[peer]))
        plan[best] = [key for key in holders.pop(best) if wanted[key] > 0]
        for key in plan[best]:
            wanted[key] -= 1
    return plan
