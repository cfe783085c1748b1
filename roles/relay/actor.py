"""The relay as an actor: watches the checkpoint rows, pulls what it lacks from other relays, serves each shard at once.

A source that fails costs time, never what is already here (WGT-11).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import httpx
import structlog
from starlette.types import ASGIApp

from dht.envelope import Envelope
from dht.errors import NodeError, PeerError, TransportError
from dht.identity import NodeId, NodeKey
from dht.records import unix_ms
from roles.messages import CheckpointRow, checkpoints_key, open_row
from roles.relay.app import RelayRoutes
from roles.relay.boards import Board
from roles.relay.fence import Fence, FencedLeader, TermRule, no_terms
from roles.relay.limits import AddressRate, GrantBook, Members, Quota
from roles.relay.metrics import Counters
from roles.relay.parts import RelayParts
from roles.relay.rebuilding import Rebuilder
from roles.relay.settings import RelaySettings
from roles.relay.sponsor import Sponsor, SponsorDesk
from roles.shardcast.catalogue import KeptCheckpoint, Parcel
from roles.shardcast.chains import find_chain
from roles.shardcast.errors import StaleCheckpoint
from roles.shardcast.exchange import TransferLimits
from roles.shardcast.gather import FROM_ONE, ShardGatherer
from roles.shardcast.grants import relays_in
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shelf import Shelf
from roles.shardcast.sinks import Sink
from roles.shardcast.subscription import Offered, Subscription

log = structlog.get_logger("relay")

Read = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Envelope]]]]
"""The directory's reader: keys -> verified rows."""

PUSH_QUIET = 0.5
"""Seconds without a pushed shard after which the trainer is taken to push elsewhere, and pulling begins."""
PULLS_AT_ONCE = 2
MOST_OFFERS = 32
STALE = inf
FIRST_POLL = 2.0
"""Seconds between two looks at the rows while no checkpoint is known at all."""
MOST_DELTAS = 4
"""To one checkpoint, taken from another relay."""
READ_PATIENCE = 15.0
RETRY_PULL = 3.0


async def _no_rows(keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
    return {}


class Relay:
    """One relay. `app` is what `serve` serves; `run` pulls until cancelled.

    `relays` gives the other relays known now, `is_member` who may upload, `sponsor` pays registrations (None: does
    not), `spec` is served as `/spec`, `data_sets` by digest, `read` reads checkpoint rows, `term_rule` says whose
    checkpoints may be spread, `board` takes signed rows (None: it has none).
    """

    def __init__(
        self,
        key: NodeKey,
        *,
        root: Path,
        run: str,
        trainers: Collection[NodeId],
        is_member: Callable[[NodeId], bool],
        relays: Callable[[], Sequence[RelayInfo]] = tuple,
        http: httpx.AsyncClient | None = None,
        read: Read = _no_rows,
        sponsor: Sponsor | None = None,
        spec: bytes = b"",
        data_sets: Sequence[Path] = (),
        settings: RelaySettings | None = None,
        clock: Callable[[], int] = unix_ms,
        free_space: Callable[[Path], int] | None = None,
        term_rule: TermRule = no_terms,
        board: Board | None = None,
    ) -> None:
        self._fence, self._board = Fence(term_rule), board
        self.settings = settings = settings or RelaySettings()
        self.node, self.run_id = key.node, run
        self.counters = Counters()
        self.shelf = Shelf(
            root,
            run=run,
            trainers=trainers,
            max_disk=settings.max_disk,
            kept=settings.kept,
            retention=settings.retention,
            keeps_all=settings.archive,
            free_space=free_space,
        )
        self._trainers, self._read = frozenset(trainers), read
        self._spec, self._data_sets = spec, data_sets
        self._link = self._make_link(key, run, relays, http)
        self._rebuilder = Rebuilder(self.shelf, self._link, opener=self._opener, arrived=self._count)
        self._hints: dict[str, tuple[NodeId, ...]] = {}
        self._pulling: set[str] = set()
        self._asked: dict[str, float] = {}  # manifests: when they may be asked for again
        self._rested: dict[str, float] = {}  # checkpoints: when they may be pulled again
        self._news = asyncio.Event()
        self._last_push = 0.0
        self.app: ASGIApp = RelayRoutes(self._parts(is_member, sponsor, clock)).app()

    async def run(self) -> None:
        """Store the spec, watch the rows, pull. Runs until cancelled."""
        await self.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._subscribe())
            group.create_task(self._pull(group))

    async def prepare(self) -> None:
        """Put the spec and the tasks' data sets into the store, so that their digests find them."""
        if self._spec:
            await self.shelf.store.put(self._spec, pin=True)
        for path in self._data_sets:
            await self.shelf.store.put(await asyncio.to_thread(path.read_bytes), pin=True)

    def _parts(
        self, is_member: Callable[[NodeId], bool], sponsor: Sponsor | None, clock: Callable[[], int]
    ) -> RelayParts:
        settings = self.settings
        quota = Quota(settings.quota_bytes, settings.quota_uploads, settings.window, time.monotonic)
        state_quota = Quota(settings.state_bytes, settings.state_uploads, settings.retention, time.monotonic)
        parts = SponsorDesk(
            sponsor, run=self.run_id, per_hour=settings.sponsored_per_hour, work_bits=settings.work_bits
        )
        return RelayParts(
            run=self.run_id,
            node=self.node,
            settings=settings,
            shelf=self.shelf,
            members=Members(self._trainers, is_member),
            grants=GrantBook(self.node, clock=clock),
            quota=quota,
            state_quota=state_quota,
            rate=AddressRate(rate=settings.rate, burst=settings.burst, clock=time.monotonic),
            sponsor=parts,
            fence=self._fence,
            counters=self.counters,
            noticed=self._notice,
            started=time.monotonic(),
            board=self._board,
        )

    def _make_link(
        self, key: NodeKey, run: str, relays: Callable[[], Sequence[RelayInfo]], http: httpx.AsyncClient | None
    ) -> RelayLink | None:
        if http is None:
            return None
        limits = replace(TransferLimits(), stall=self.settings.pull_stall, bulk=self.settings.bulk)
        return RelayLink(key, run=run, relays=relays, http=http, limits=limits)

    def _notice(self) -> None:
        self._last_push = time.monotonic()
        self._news.set()

    async def _watch(self) -> None:
        key = checkpoints_key(self.run_id)
        while True:
            try:
                async with asyncio.timeout(READ_PATIENCE):
                    rows = await self._read([key])
                for row in rows.get(key, ()):
                    await self._learn(row)
            except (NodeError, TimeoutError) as error:
                log.warning("rows.unread", reason=str(error) or "no answer in time")
            await asyncio.sleep(
                self.settings.poll if len(self.shelf.catalogue) else min(self.settings.poll, FIRST_POLL)
            )

    async def _subscribe(self) -> None:
        """Hold questions open at other relays and note each checkpoint they announce."""
        if self._link is None:
            return
        offers: asyncio.Queue[Offered] = asyncio.Queue(MOST_OFFERS)

        def told(offer: Offered) -> None:
            if offer.manifest not in self.shelf.catalogue and not offers.full():
                offers.put_nowait(offer)

        async with asyncio.TaskGroup() as group:
            group.create_task(Subscription(self._link, told).run())
            while True:
                offer = await offers.get()
                for relay in self._link.known():
                    if relay.node == offer.relay and self._asked.get(offer.manifest) != STALE:
                        await self._take_up(self._link, relay, offer.manifest)

    async def _learn(self, row: Envelope) -> None:
        try:
            message = open_row(row, run=self.run_id, buckets=1)
        except PeerError:
            return
        if row.signer not in self._trainers or not isinstance(message, CheckpointRow):
            return
        try:
            self._fence.check(signer=row.signer, term=message.term, step=message.step, manifest=message.manifest)
        except FencedLeader:
            return
        hints = relays_in(row.hint)
        if message.manifest in self.shelf.catalogue:
            self._hints[message.manifest] = hints
        elif self._link is not None and _has_rested(self._asked, message.manifest) and not self._is_past(message):
            await self._fetch_manifest(self._link, message.manifest, hints)

    def _is_past(self, message: CheckpointRow) -> bool:
        """Whether the checkpoint is older than all that a full shelf keeps. Rows outlive checkpoints by minutes, and each
        question for one that nobody has delays the next."""
        kept = list(self.shelf.catalogue)
        if self.settings.archive or len(kept) < self.settings.kept:
            return False
        oldest = kept[-1].manifest
        return (message.term, message.step) < (oldest.term, oldest.step)

    async def _fetch_manifest(self, link: RelayLink, digest: str, hints: tuple[NodeId, ...]) -> None:
        for relay in link.order(hints):
            if await self._take_up(link, relay, digest):
                self._hints.setdefault(digest, hints)
                return

    async def _take_up(self, link: RelayLink, relay: RelayInfo, digest: str) -> bool:
        """Fetch a manifest from one relay. Returns whether no other relay need be asked."""
        if digest in self.shelf.catalogue:
            return True
        self._asked[digest] = time.monotonic() + RETRY_PULL
        try:
            envelope = await link.receive_manifest(relay, digest)
            kept = self._fence.check_parcel(self.shelf.catalogue.check(envelope))
            await self._fetch_deltas(link, relay, digest)  # first: pulling begins once the manifest is there
            await self.shelf.add(kept)
        except StaleCheckpoint:
            self._asked[digest] = STALE
            return True
        except (NodeError, OSError) as error:
            log.info("manifest.missed", relay=relay.node, reason=str(error))
            return False
        self._asked.pop(digest, None)
        self._hints[digest] = (relay.node,)
        self._news.set()
        return True

    async def _fetch_deltas(self, link: RelayLink, relay: RelayInfo, target: str) -> None:
        """The signed rows of deltas to a checkpoint, as the relay that told of it lists them, and of those on the way to it
        from one that is here."""
        with suppress(NodeError, OSError):
            listed = await link.read_deltas(relay)
            last = [hint for hint in listed if hint.target == target][:MOST_DELTAS]
            way = find_chain(listed, target, self._rebuilder.bases(), below=inf)
            for delta in dict.fromkeys(hint.delta for hint in (*way, *last)):
                if delta not in self.shelf.catalogue:
                    envelope = await link.receive_manifest(relay, delta)
                    await self.shelf.add(self._fence.check_parcel(self.shelf.catalogue.check(envelope)))

    async def _pull(self, group: asyncio.TaskGroup) -> None:
        while True:
            self._news.clear()
            self._forget_old()
            for kept in self.shelf.catalogue:
                if self._is_due(kept) and len(self._pulling) < PULLS_AT_ONCE:
                    self._pulling.add(kept.digest)
                    group.create_task(self._pull_one(kept))
            try:
                async with asyncio.timeout(min(self.settings.poll, RETRY_PULL)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _is_due(self, kept: KeptCheckpoint) -> bool:
        if kept.digest in self._pulling or not _has_rested(self._rested, kept.digest) or not self.shelf.missing(kept):
            return False
        if self._rebuilder.way_to(kept):
            return True
        return self._link is not None and not self._rebuilder.may_come(kept, self._pulling)

    async def _pull_one(self, kept: KeptCheckpoint) -> None:
        try:
            if not await self._rebuild(kept):
                await self._pull_shards(kept)
            if self.shelf.missing(kept):
                self._rested[kept.digest] = time.monotonic() + RETRY_PULL
        except (NodeError, OSError) as error:
            log.warning("checkpoint.unpulled", step=kept.manifest.step, manifest=kept.digest, reason=str(error))
            self._rested[kept.digest] = time.monotonic() + RETRY_PULL
        finally:
            self._pulling.discard(kept.digest)
            self._news.set()

    async def _rebuild(self, kept: KeptCheckpoint) -> bool:
        """Rebuild the checkpoint from deltas, if possible. Returns whether it is whole now."""
        chain = self._rebuilder.way_to(kept)
        if not chain:
            return False
        await self._until_quiet(lambda: not any(map(self.shelf.missing, chain)))
        return await self._rebuilder.rebuild(kept, chain, self._hints.get(kept.digest, ()))

    async def _pull_shards(self, kept: KeptCheckpoint) -> None:
        if self._link is None:
            return
        await self._until_useful(self._link, kept)
        missing = self.shelf.missing(kept)
        if not missing:
            return
        gatherer = ShardGatherer(
            self._link,
            kept.layout,
            self._opener(kept),
            digest=kept.digest,
            hints=self._hints.get(kept.digest, ()),
            arrived=lambda index: self._count(kept.layout.size(index)),
            from_whole=FROM_ONE,
        )
        await gatherer.gather(missing)
        log.info("checkpoint.pulled", step=kept.manifest.step, manifest=kept.digest, shards=len(missing))

    async def _until_quiet(self, is_enough: Callable[[], bool]) -> None:
        """Wait while the trainer pushes shards here: pulling the same ones would only send them twice."""
        while not is_enough() and (left := self._last_push + PUSH_QUIET - time.monotonic()) > 0:
            await self.shelf.store.wait_for_any(left)

    async def _until_useful(self, link: RelayLink, kept: KeptCheckpoint) -> None:
        """Wait while the trainer pushes shards here, until another relay has some that we lack."""
        while (left := self._last_push + PUSH_QUIET - time.monotonic()) > 0:
            for relay in link.order(self._hints.get(kept.digest, ()), most=PULLS_AT_ONCE):
                with suppress(NodeError):
                    if await link.read_holdings(relay, kept.digest, known=0, wait=left) & ~self.shelf.holdings(kept):
                        return
            await self.shelf.store.wait_for_any(left)

    def _count(self, size: int) -> None:
        self.counters.bytes_pulled += size

    def _opener(self, kept: Parcel) -> Callable[[int], Sink | None]:
        def open_sink(index: int) -> Sink | None:
            digest = kept.layout.manifest.shards[index]
            if digest in self.shelf.store:
                return None
            if kept.digest not in self.shelf.catalogue:
                raise TransportError("the checkpoint is no longer kept")
            return self.shelf.begin(digest, kept.layout.size(index), is_shard=True)

        return open_sink

    def _forget_old(self) -> None:
        self._hints = {digest: hints for digest, hints in self._hints.items() if digest in self.shelf.catalogue}
        for times in (self._asked, self._rested):
            if len(times) > 1024:
                times.clear()


def _has_rested(times: Mapping[str, float], digest: str) -> bool:
    return times.get(digest, 0.0) <= time.monotonic()
