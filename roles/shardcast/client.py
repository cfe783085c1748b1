"""Used by workers, validators and trainers to store and fetch blobs, manifests and whole checkpoints by digest."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from weakref import WeakValueDictionary

import httpx
import structlog

from dht.encoding import sha256
from dht.envelope import Envelope
from dht.errors import NodeError, PeerError, TransportError
from dht.identity import NodeId, NodeKey
from ledger.records import RegistrationRequest, RotationRequest
from roles.messages import CheckpointManifest
from roles.shardcast.assembly import Assembly, load_checkpoint_manifest
from roles.shardcast.copies import replicate
from roles.shardcast.errors import NotHeld
from roles.shardcast.exchange import TransferLimits
from roles.shardcast.gather import ShardGatherer
from roles.shardcast.keeper import COPIES, Keeper
from roles.shardcast.link import RelayLink
from roles.shardcast.manifest import check_manifest
from roles.shardcast.origin import Origin
from roles.shardcast.progress import Progress
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shortcut import Fetched, Shortcuts
from roles.shardcast.sinks import MemorySink
from roles.shardcast.subscription import Offered, Subscription
from roles.shardcast.work import compute_work

log = structlog.get_logger("shardcast")

SEND_BLOCK = 2**18
ROUNDS = 3
"""How many times the whole list of relays is tried for one small blob."""
PAUSE = 0.3
TIMES = 2
"""A small blob may take this many times the longest transfer from one relay."""
LOCK_PAUSE = 0.2
WAIT_AT = 3
"""Number of relays asked to hold the request for a manifest that none has."""
MOST_RECEIVED = 64
"""Number of checkpoints whose sources are remembered."""
PATIENCE = 3.0
"""Seconds a copy of a small blob may take before the next relay is tried concurrently."""


class RelayClient:
    """`relays` returns the relays known now (from node records). `http` belongs to the caller, who closes it."""

    def __init__(
        self,
        key: NodeKey,
        *,
        run: str,
        trainers: Collection[NodeId],
        relays: Callable[[], Sequence[RelayInfo]],
        http: httpx.AsyncClient,
        limits: TransferLimits | None = None,
    ) -> None:
        self.link = RelayLink(key, run=run, relays=relays, http=http, limits=limits)
        self.origin = Origin(self.link, trainers=frozenset(trainers))
        self.keeper = Keeper(self.link, self._push_again)
        self._trainers = frozenset(trainers)
        self._shortcuts = Shortcuts(self.link, trainers=self._trainers)
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._received: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by manifest: bytes per relay

    async def run(self) -> None:
        """Background work of a node that publishes: making missing second copies, and checking that
        relays still hold the blobs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.origin.run())
            group.create_task(self.keeper.run())

    async def put(self, data: bytes, *, last: Collection[NodeId] = ()) -> tuple[NodeId, ...]:
        """Store a blob on two relays, or on one if no other takes it. Relays in `last` are asked only when the others
        do not suffice. Raises TransportError when none takes it."""
        digest, troubles = sha256(data), ["no relay is known"]

        async def push(relay: RelayInfo) -> bool:
            return await self._put_one(relay, digest, data, troubles)

        relays = self.link.order(last=last)
        holders = await replicate(relays, push, copies=COPIES, patience=PATIENCE, hedge=True)
        if not holders:
            raise TransportError(f"no relay took the blob: {troubles[-1]}")
        self.keeper.watch(digest, data, holders)
        return holders

    async def get(self, digest: str, *, limit: int, relays: Sequence[NodeId] = ()) -> bytes:
        """Fetch a blob of at most `limit` bytes, asking `relays` first. The digest is verified.

        A relay that serves wrong bytes is dropped and reported, and the next one is tried. Raises
        TransportError when no relay has it.
        """
        troubles = ["no relay is known"]
        try:
            async with asyncio.timeout(TIMES * self.link.limits.total(limit)):
                for turn in range(ROUNDS):
                    await asyncio.sleep(turn * PAUSE)
                    data = await self._get_from_any(digest, limit, relays, troubles)
                    if data is not None:
                        return data
                    if set(troubles[1:]) <= {str(NotHeld())}:
                        break
        except TimeoutError:
            troubles.append("they are too slow")
        raise TransportError(f"no relay has blob {digest[:12]}: {troubles[-1]}")

    async def _get_from_any(
        self, digest: str, limit: int, relays: Sequence[NodeId], troubles: list[str]
    ) -> bytes | None:
        for relay in self.link.order(relays):
            sink = MemorySink(digest)
            try:
                await self.link.receive(relay, digest, limit=limit, sink=sink)
                return sink.data
            except (PeerError, TransportError) as error:
                troubles.append(str(error))
        return None

    async def fetch_manifest(self, digest: str) -> Envelope:
        """Fetch a manifest signed by a trainer of the run. Raises TransportError when no relay has it."""
        envelope, _ = await self._fetch_manifest(digest)
        return envelope

    def received(self, manifest: str) -> Mapping[str, int]:
        """Verified bytes of a checkpoint fetched here, by source relay. The counts are cleared once returned."""
        return self._received.pop(manifest, {})

    async def fetch_checkpoint(
        self,
        digest: str,
        into: Path,
        *,
        progress: Callable[[int, int], None] | None = None,
        is_durable: bool = False,
    ) -> Path:
        """Fetch a checkpoint to `into/{digest}`, every byte verified. What an earlier try fetched is not
        fetched again, and what is there is verified again. `is_durable`: also synced, for readers that use the
        folder without asking here.

        Where relays have deltas from a checkpoint that is already in `into`, those are used, because they are far
        smaller. The fetch starts as soon as a relay has the manifest. `progress` is called, in the thread of each
        verified shard, with the bytes that are here and the total. Raises TransportError when relays deliver nothing
        for a minute (call again to resume), StoreFull on a disk error.
        """
        lock = self._fetching.setdefault(digest, asyncio.Lock())
        async with lock:
            final = into / digest
            if await self._is_there(final, digest):
                return final
            envelope, manifest = await self._await_manifest(digest)
            assembly = Assembly(into, envelope, manifest, progress=progress, is_durable=is_durable)
            return await self._assemble(assembly)

    async def put_checkpoint(
        self, manifest: Envelope, directory: Path, *, delta: tuple[Envelope, Path] | None = None, whole: bool = True
    ) -> tuple[NodeId, ...]:
        """Publish a checkpoint, optionally with a delta to it: see `Origin.publish`."""
        return await self.origin.publish(manifest, directory, delta=delta, whole=whole)

    async def register(self, request: RegistrationRequest | RotationRequest) -> object:
        """Ask relays to pay for a registration, or the rotation of a key. Returns the sponsor's JSON response.

        Raises TransportError when none will.
        """
        node = request.node if isinstance(request, RegistrationRequest) else request.old_node
        counter = await asyncio.to_thread(compute_work, node, request.nonce)
        trouble = "no relay is known"
        for relay in self.link.order():
            try:
                return await self.link.register(relay, asdict(request), work=counter)
            except NodeError as error:
                trouble = str(error)
        raise TransportError(f"no relay sponsors the registration: {trouble}")

    async def _put_one(self, relay: RelayInfo, digest: str, data: bytes, troubles: list[str]) -> bool:
        async def content() -> AsyncIterator[bytes]:
            for start in range(0, len(data), SEND_BLOCK):
                yield data[start : start + SEND_BLOCK]

        try:
            await self.link.send(relay, digest, len(data), content)
        except NodeError as error:
            log.warning("blob.refused", relay=relay.node, reason=str(error))
            troubles.append(str(error))
            return False
        return True

    async def _push_again(self, relay: RelayInfo, digest: str, data: bytes) -> bool:
        return await self._put_one(relay, digest, data, [])

    async def _fetch_manifest(self, digest: str) -> tuple[Envelope, CheckpointManifest]:
        trouble = "no relay is known"
        for relay in self.link.order():
            try:
                envelope = await self.link.receive_manifest(relay, digest)
                manifest = await asyncio.to_thread(check_manifest, envelope, run=self.link.run, trainers=self._trainers)
                return envelope, manifest
            except (PeerError, TransportError) as error:
                trouble = str(error)
        raise TransportError(f"no relay has manifest {digest[:12]}: {trouble}")

    async def _await_manifest(self, digest: str) -> tuple[Envelope, CheckpointManifest]:
        """As `fetch_manifest`, but if no relay has it yet, some are asked to respond once they
        do. Raises TransportError."""
        try:
            return await self._fetch_manifest(digest)
        except TransportError:
            async with asyncio.TaskGroup() as group:
                held_open = [group.create_task(self._wait_at(relay, digest)) for relay in self.link.order(most=WAIT_AT)]
                found: Envelope | None = None
                for answer in asyncio.as_completed(held_open):
                    if (found := await answer) is not None:
                        break
                for task in held_open:
                    task.cancel()
            if found is None:
                raise
        return found, await asyncio.to_thread(check_manifest, found, run=self.link.run, trainers=self._trainers)

    async def _wait_at(self, relay: RelayInfo, digest: str) -> Envelope | None:
        try:
            return await self.link.receive_manifest(relay, digest, wait=self.link.limits.news)
        except (PeerError, TransportError):
            return None

    async def watch(self, told: Callable[[Offered], None], *, held: Callable[[], str] = lambda: "") -> None:
        """Call `told` for each checkpoint that relays have, as soon as one has it. Runs until cancelled. `held` returns
        the manifest digest this node has now. An offer is a relay's claim; `fetch_checkpoint` judges the manifest."""
        await Subscription(self.link, told, held=held, leading_on=self._shortcuts.hear).run()

    async def _is_there(self, final: Path, digest: str) -> bool:
        if not await asyncio.to_thread(final.exists):
            return False
        kept = await asyncio.to_thread(
            load_checkpoint_manifest, final, digest=digest, run=self.link.run, trainers=self._trainers
        )
        if kept is None:
            log.warning("checkpoint.damaged", manifest=digest)
            await asyncio.to_thread(shutil.rmtree, final, ignore_errors=True)
        return kept is not None

    async def _assemble(self, assembly: Assembly) -> Path:
        while not await asyncio.to_thread(assembly.open):  # another process of this machine is assembling it
            await asyncio.sleep(LOCK_PAUSE)
            if await self._is_there(assembly.final, assembly.digest):
                return assembly.final
        if await self._is_there(assembly.final, assembly.digest):  # finished between our check and our lock
            await asyncio.to_thread(assembly.discard)
            return assembly.final
        started, fetched = time.monotonic(), Fetched()
        try:
            if assembly.missing:
                await self._shortcuts.fill(assembly, fetched)
            if assembly.missing:
                await self._gather(assembly, fetched)
            path = await asyncio.to_thread(assembly.finish)
        finally:
            assembly.close()
            self._note_received(assembly.digest, fetched.by_relay)
        log.info(
            "checkpoint.fetched",
            manifest=assembly.digest,
            step=assembly.layout.manifest.step,
            full=fetched.by_relay.total() - fetched.delta,
            delta=fetched.delta,
            seconds=round(time.monotonic() - started, 3),
        )
        return path

    def _note_received(self, digest: str, by_relay: Counter[str]) -> None:
        self._received[digest] += by_relay
        while len(self._received) > MOST_RECEIVED:  # not every caller collects its counts
            del self._received[next(iter(self._received))]

    async def _gather(self, assembly: Assembly, fetched: Fetched) -> None:
        layout = assembly.layout
        progress = Progress(layout.manifest.step, sum(map(layout.size, assembly.missing)))
        gatherer = ShardGatherer(
            self.link,
            layout,
            assembly.writer,
            digest=assembly.digest,
            arrived=lambda index: progress.count(layout.size(index)),
        )
        try:
            await gatherer.gather(tuple(assembly.missing))
        finally:
            fetched.by_relay += gatherer.served
