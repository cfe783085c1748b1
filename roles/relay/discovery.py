"""How a relay learns of checkpoints: from the rows of trainers, and from other relays as soon as they have one.

A manifest is fetched from any relay that delivers it, and kept if a trainer signed it. Its shards
are left to the `Puller`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from math import inf

import structlog

from dht.envelope import Envelope
from dht.errors import NodeError, PeerError
from dht.identity import NodeId
from roles.messages import CheckpointRow, checkpoints_key, open_row
from roles.relay.fence import Fence, FencedLeader
from roles.relay.pulling import MOST_REMEMBERED, RETRY_PULL, Puller, has_rested
from roles.relay.settings import RelaySettings
from roles.shardcast.chains import find_chain
from roles.shardcast.errors import StaleCheckpoint
from roles.shardcast.grants import relays_in
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shelf import Shelf
from roles.shardcast.subscription import Offered, Subscription

log = structlog.get_logger("relay")

Read = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Envelope]]]]
"""The directory's reader: keys -> verified rows."""

MOST_OFFERS = 32
STALE = inf
FIRST_POLL = 2.0
"""Seconds between two reads of the rows while no checkpoint is known at all."""
MOST_DELTAS = 4
"""Maximum number of deltas to one checkpoint that are taken from another relay."""
READ_PATIENCE = 15.0


class Discovery:
    """Puts manifests and rows of deltas on the shelf as they become known. Without a link it
    only records who holds what."""

    def __init__(
        self,
        *,
        run: str,
        trainers: frozenset[NodeId],
        settings: RelaySettings,
        shelf: Shelf,
        link: RelayLink | None,
        fence: Fence,
        puller: Puller,
        read: Read,
    ) -> None:
        self._run, self._trainers, self._settings = run, trainers, settings
        self._shelf, self._link, self._fence = shelf, link, fence
        self._puller, self._read = puller, read
        self._asked: dict[str, float] = {}  # by manifest: when it may be requested again

    async def run(self) -> None:
        """Watch the rows and other relays until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._subscribe())

    async def _watch(self) -> None:
        key = checkpoints_key(self._run)
        while True:
            if len(self._asked) > MOST_REMEMBERED:
                self._asked.clear()
            try:
                async with asyncio.timeout(READ_PATIENCE):
                    rows = await self._read([key])
                for row in rows.get(key, ()):
                    await self._learn(row)
            except (NodeError, TimeoutError) as error:
                log.warning("rows.unread", reason=str(error) or "no answer in time")
            await asyncio.sleep(
                self._settings.poll if len(self._shelf.catalogue) else min(self._settings.poll, FIRST_POLL)
            )

    async def _subscribe(self) -> None:
        """Keep subscriptions open at other relays and record each checkpoint they announce."""
        if self._link is None:
            return
        offers: asyncio.Queue[Offered] = asyncio.Queue(MOST_OFFERS)

        def told(offer: Offered) -> None:
            if offer.manifest not in self._shelf.catalogue and not offers.full():
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
            message = open_row(row, run=self._run, buckets=1)
        except PeerError:
            return
        if row.signer not in self._trainers or not isinstance(message, CheckpointRow):
            return
        try:
            self._fence.check(signer=row.signer, term=message.term, step=message.step, manifest=message.manifest)
        except FencedLeader:
            return
        hints = relays_in(row.hint)
        if message.manifest in self._shelf.catalogue:
            self._puller.hints[message.manifest] = hints
        elif self._link is not None and has_rested(self._asked, message.manifest) and not self._is_past(message):
            await self._fetch_manifest(self._link, message.manifest, hints)

    def _is_past(self, message: CheckpointRow) -> bool:
        """Whether the checkpoint is older than everything on a full shelf. Rows outlive checkpoints by minutes, and
        each request for one that no relay has delays the next."""
        kept = list(self._shelf.catalogue)
        if self._settings.archive or len(kept) < self._settings.kept:
            return False
        oldest = kept[-1].manifest
        return (message.term, message.step) < (oldest.term, oldest.step)

    async def _fetch_manifest(self, link: RelayLink, digest: str, hints: tuple[NodeId, ...]) -> None:
        for relay in link.order(hints):
            if await self._take_up(link, relay, digest):
                self._puller.hints.setdefault(digest, hints)
                return

    async def _take_up(self, link: RelayLink, relay: RelayInfo, digest: str) -> bool:
        """Fetch a manifest from one relay. Returns whether no other relay needs to be asked."""
        if digest in self._shelf.catalogue:
            return True
        self._asked[digest] = time.monotonic() + RETRY_PULL
        try:
            envelope = await link.receive_manifest(relay, digest)
            kept = self._fence.check_parcel(self._shelf.catalogue.check(envelope))
            await self._fetch_deltas(link, relay, digest)  # first: pulling begins once the manifest is here
            await self._shelf.add(kept)
        except StaleCheckpoint:
            self._asked[digest] = STALE
            return True
        except (NodeError, OSError) as error:
            log.info("manifest.missed", relay=relay.node, reason=str(error))
            return False
        self._asked.pop(digest, None)
        self._puller.hints[digest] = (relay.node,)
        self._puller.wake()
        return True

    async def _fetch_deltas(self, link: RelayLink, relay: RelayInfo, target: str) -> None:
        """Fetch the signed rows of deltas to a checkpoint, as listed by the relay that announced it, and of the deltas
        that lead to it from a checkpoint that is here."""
        with suppress(NodeError, OSError):
            listed = await link.read_deltas(relay)
            last = [hint for hint in listed if hint.target == target][:MOST_DELTAS]
            way = find_chain(listed, target, self._puller.rebuilder.bases(), below=inf)
            for delta in dict.fromkeys(hint.delta for hint in (*way, *last)):
                if delta not in self._shelf.catalogue:
                    envelope = await link.receive_manifest(relay, delta)
                    await self._shelf.add(self._fence.check_parcel(self._shelf.catalogue.check(envelope)))
