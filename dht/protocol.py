"""The DHT's remote calls, hardened. One bad row costs only that row, requests and responses stay under p2pd's message
limit, a node's place follows from its peer id, and nodes of other runs are not spoken to.

Derived from hivemind's DHTProtocol, with the same wire messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

from dht.answers import LEFT_OUT, REPLY_BYTES, Answer, AnswerReader
from dht.bare import DHTID, DHTProtocol, P2PContext, PeerID, dht_pb2
from dht.errors import Malformed
from dht.hand_over import HandOver
from dht.peers import PeerBook
from dht.places import PLACE_BYTES, place_of_peer
from dht.record_validator import EnvelopeValidator, parse_rows, unwrap_subkey, wrap
from dht.storage import PackedRow, RowStorage
from dht.turns import let_others_run

T = TypeVar("T")

CALL_SECONDS = 5.0
MAX_KEYS = 64  # in one find request
REQUEST_BYTES = 2**20  # rows in one store request (pitfall DHT-10)
FAILURES_TO_DROP = 2
_PEERS_KEPT = 2048


class RowProtocol(DHTProtocol):  # type: ignore[misc]  # hivemind is untyped
    """Subclassed per directory by `protocol_for`, since hivemind builds its protocol from the class alone."""

    run: str
    book: PeerBook
    row_storage: RowStorage
    validator: EnvelopeValidator
    is_hidden: bool
    _answers: AnswerReader

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> RowProtocol:
        """Create hivemind's protocol. Rows are kept in `row_storage`; hivemind's own storage and cache are unused."""
        self: RowProtocol = await super().create(*args, **kwargs)
        self._answers = AnswerReader(self.validator, most_neighbours=self.bucket_size)
        self.is_hidden = self.client_mode
        return self

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures: dict[PeerID, int] = {}
        self.hand_over = HandOver(self)

    def hide(self, is_hidden: bool) -> None:
        """While nobody can dial us, stay out of other nodes' routing tables, as a client does (pitfall NAT-02)."""
        self.is_hidden = is_hidden or self.client_mode
        place = b"" if self.is_hidden else self.node_id.to_bytes()
        self.node_info = dht_pb2.NodeInfo(node_id=place)

    def abandon(self) -> None:
        """Cancel the work in progress."""
        for task in self._tasks:
            task.cancel()

    async def shutdown(self) -> None:
        """Cancel the work in progress, then remove the handlers."""
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().shutdown()

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return f"intellect/1/{cls.run[:16]}/{method_name}"  # unknown to nodes of other runs (pitfall BOOT-04)

    # -- what peers ask of us

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        """Answer a ping with our time and, if validation is requested, with whether we can call the peer back."""
        response = dht_pb2.PingResponse(peer=self.node_info, dht_time=time.time(), available=False)
        if request.peer.node_id:
            if request.validate:
                response.available = await self.call_ping(context.remote_id) is not None
            await self.update_routing_table(_place_in(request.peer), context.remote_id)
        return response

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Store a peer's rows; each is judged separately."""
        await self._meet(request.peer, context)
        response = dht_pb2.StoreResponse(store_ok=[], peer=self.node_info)
        items = zip(request.keys, request.subkeys, request.values, request.expiration_time, strict=False)
        for number, (key, tag, value, expiration) in enumerate(items):
            await let_others_run(number)
            if len(key) != PLACE_BYTES:
                response.store_ok.append(False)
            elif tag == self.IS_DICTIONARY:
                response.store_ok.append(await self._store_dictionary(key, value))
            else:
                response.store_ok.append(self._store_row(key, tag, value, expiration))
        return response

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Answer with rows and with the neighbours nearest to their keys. What does not
        fit into the response is left out."""
        await self._meet(request.peer, context)
        response = dht_pb2.FindResponse(results=[], peer=self.node_info)
        asker = place_of_peer(context.remote_id)
        keys = [key for key in request.keys[:MAX_KEYS] if len(key) == PLACE_BYTES]
        wanted = self.bucket_size if len(keys) == 1 else 0  # only lookups, for one key, need neighbours
        room = REPLY_BYTES
        for key in map(DHTID.from_bytes, keys):
            result = self._find_rows(key, room)
            room -= len(result.value)
            neighbours = self.routing_table.get_nearest_neighbors(key, k=wanted, exclude=asker) if wanted else ()
            for node_id, peer in neighbours:
                result.nearest_node_ids.append(node_id.to_bytes())
                result.nearest_peer_ids.append(peer.to_bytes())
            response.results.append(result)
        return response

    def _find_rows(self, key: DHTID, room: int) -> dht_pb2.FindResult:
        """A key's rows, if they fit into the remaining space of the response; the first key's rows always fit."""
        packed = self.row_storage.packed(key)
        if packed is not None and (len(packed[0]) <= room or room == REPLY_BYTES):
            return dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=packed[0], expiration_time=packed[1])
        return dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, expiration_time=LEFT_OUT if packed else 0.0)

    def _store_row(self, key: bytes, tag: bytes, value: bytes, expiration: float) -> bool:
        try:
            subkey = unwrap_subkey(tag)
        except Malformed:
            self.row_storage.malformed += 1
            return False
        return self.row_storage.put(DHTID.from_bytes(key), subkey, value, expiration)

    async def _store_dictionary(self, key: bytes, value: bytes) -> bool:
        try:
            items = parse_rows(value)
        except Malformed:
            self.row_storage.malformed += 1
            return False
        all_kept = True
        for number, (subkey, row, expiration) in enumerate(items):
            await let_others_run(number)
            all_kept &= self.row_storage.put(DHTID.from_bytes(key), subkey, row, expiration)
        return all_kept

    async def _meet(self, info: dht_pb2.NodeInfo, context: P2PContext) -> None:
        if info.node_id:
            await self.update_routing_table(_place_in(info), context.remote_id)

    # -- what we ask of peers

    async def call_ping(self, peer: PeerID, validate: bool = False) -> DHTID | None:
        """A peer's place; None when it does not answer. Records round trip, clock and reachability in the book."""
        request = dht_pb2.PingRequest(peer=self.node_info, validate=validate)
        began = time.monotonic()
        response = await self._call(peer, "rpc_ping", request)
        if response is None or not response.peer.node_id:
            return None
        round_trip = time.monotonic() - began
        self.book.note_answer(
            peer.to_base58(),
            round_trip=round_trip,
            skew=skew_of(response.dht_time, time.time() - round_trip / 2),
            reaches_us=response.available if validate and not self.is_hidden else None,
        )
        place = place_of_peer(peer)
        return place if _place_in(response.peer) == place else None

    async def fetch(self, peer: PeerID, keys: Collection[DHTID]) -> dict[DHTID, Answer] | None:
        """A peer's rows for some keys, without bad ones; None when it does not answer."""
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)
        response = await self._call(peer, "rpc_find", request)
        if response is None:
            return None
        try:
            return await self._answers.read_all(peer, keys, response.results)
        except Exception as error:  # nothing a peer sends may end the reader
            self.book.note_failure(peer.to_base58(), f"{type(error).__name__}: {error}")
            return None

    async def send_rows(self, peer: PeerID, rows: Sequence[PackedRow]) -> list[bool] | None:
        """Ask a peer to keep rows, in requests of at most REQUEST_BYTES. Returns whether it keeps
        each; None when it does not answer."""
        kept: list[bool] = []
        for part in _parts([len(row.value) for row in rows]):
            sent = rows[part]
            request = dht_pb2.StoreRequest(
                keys=[row.key.to_bytes() for row in sent],
                subkeys=[wrap(row.subkey) for row in sent],
                values=[row.value for row in sent],
                expiration_time=[row.expiration for row in sent],
                in_cache=[False] * len(sent),
                peer=self.node_info,
            )
            response = await self._call(peer, "rpc_store", request)
            if response is None:
                return None
            kept.extend(response.store_ok)
        return kept

    async def _call(self, peer: PeerID, name: str, request: Any) -> Any:
        try:
            # not hivemind's own timeout: `wait_for` in Python 3.11 can swallow a cancellation
            async with self.rpc_semaphore, asyncio.timeout(self.wait_timeout):
                response = await getattr(self.get_stub(peer), name)(request, timeout=None)
        except Exception as error:  # hivemind and p2pd may raise anything; we treat it as no answer
            self.book.note_failure(peer.to_base58(), f"{type(error).__name__}: {error}")
            await self.update_routing_table(None, peer, responded=False)
            return None
        if response.peer.node_id:
            await self.update_routing_table(_place_in(response.peer), peer)
        elif place_of_peer(peer) in self.routing_table:  # it is a client now, or hidden
            del self.routing_table[place_of_peer(peer)]
        return response

    # -- the table

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Record that a peer answered, or did not. A DHT id that does not follow from the peer id is ignored."""
        place = place_of_peer(peer_id)
        if peer_id == self.p2p.peer_id or (responded and node_id != place):
            return
        if not responded:
            if len(self._failures) > _PEERS_KEPT:
                self._failures.clear()
            self._failures[peer_id] = self._failures.get(peer_id, 0) + 1
            if place in self.routing_table and self._failures[peer_id] >= FAILURES_TO_DROP:
                del self.routing_table[place]
            return
        has_failed = self._failures.pop(peer_id, 0) > 0
        is_new = place not in self.routing_table
        idle = self.routing_table.add_or_update_node(place, peer_id)
        if is_new or has_failed:  # a node that was away may have restarted and lost its rows
            self.start(self.hand_over.give(place, peer_id))
        if idle is not None:
            self.start(self.call_ping(idle[1]))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start background work that may outlive its caller. It is cancelled at shutdown."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def skew_of(told: float, now: float) -> float | None:
    """How far a peer's clock is ahead of ours, in seconds; None when the peer gives no valid time."""
    return told - now if 0 < told < 2**40 else None  # this comparison is also false for NaN


def _place_in(info: dht_pb2.NodeInfo) -> DHTID | None:
    """The DHT id that a peer claims; None when it is not a valid one."""
    return DHTID.from_bytes(info.node_id) if len(info.node_id) == PLACE_BYTES else None


def protocol_for(*, run: str, book: PeerBook, storage: RowStorage, validator: EnvelopeValidator) -> type[RowProtocol]:
    """The protocol class of one directory."""
    fields = {"run": run, "book": book, "row_storage": storage, "validator": validator, "_rpc_handlers": None}
    return type("RowProtocol", (RowProtocol,), fields)


def _parts(sizes: Sequence[int]) -> list[slice]:
    """Split a list into runs of at most REQUEST_BYTES, each of at least one item."""
    parts, start, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > REQUEST_BYTES:
            parts.append(slice(start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        parts.append(slice(start, len(sizes)))
    return parts
