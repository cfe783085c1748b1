"""The relay as an actor: serves what it has over HTTP, learns of checkpoints (`discovery`),
and pulls them (`pulling`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from starlette.types import ASGIApp

from dht.envelope import Envelope
from dht.identity import NodeId, NodeKey
from dht.records import unix_ms
from roles.relay.app import RelayRoutes
from roles.relay.boards import Board
from roles.relay.discovery import Discovery, Read
from roles.relay.fence import Fence, TermRule, no_terms
from roles.relay.limits import AddressRate, GrantBook, Members, Quota
from roles.relay.metrics import Counters
from roles.relay.parts import RelayParts
from roles.relay.pulling import Puller
from roles.relay.settings import RelaySettings
from roles.relay.sponsor import Sponsor, SponsorDesk
from roles.shardcast.exchange import TransferLimits
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shelf import Shelf


async def _no_rows(keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
    return {}


class Relay:
    """One relay. `app` is what `serve` serves; `run` pulls until cancelled.

    `relays` returns the other relays known now, `is_member` says who may upload, `sponsor` pays for registrations
    (None: the relay does not), `spec` is served as `/spec`, `data_sets` are served by digest, `read` reads checkpoint
    rows, `term_rule` says whose checkpoints may be spread, `board` stores signed rows (None: no board).
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
        self._trainers = frozenset(trainers)
        self._spec, self._data_sets = spec, data_sets
        link = self._make_link(key, run, relays, http)
        self._puller = Puller(self.shelf, link, settings=settings, counters=self.counters)
        self._discovery = Discovery(
            run=run,
            trainers=self._trainers,
            settings=settings,
            shelf=self.shelf,
            link=link,
            fence=self._fence,
            puller=self._puller,
            read=read,
        )
        self.app: ASGIApp = RelayRoutes(self._parts(is_member, sponsor, clock)).app()

    async def run(self) -> None:
        """Store the spec, watch the rows, pull. Runs until cancelled."""
        await self.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._discovery.run())
            group.create_task(self._puller.run())

    async def prepare(self) -> None:
        """Put the spec and the tasks' data sets into the store, so that they can be fetched by digest."""
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
            sponsor=SponsorDesk(
                sponsor, run=self.run_id, per_hour=settings.sponsored_per_hour, work_bits=settings.work_bits
            ),
            fence=self._fence,
            counters=self.counters,
            noticed=self._puller.note_push,
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
