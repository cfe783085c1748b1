"""The weights a worker holds: the newest committed checkpoint is fetched in the background while the last one samples.

What relays announce as the next one is fetched ahead of its commit, and used once it is committed.

Sampling takes what is ready between two submissions; it never waits for a fetch while its weights are in the window.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from dht.errors import NodeError
from ledger.records import Commit
from roles.observer import Observer
from roles.ports import Offer, Relays
from roles.receipts import Receipts
from roles.shardcast.assembly import prune_checkpoints
from roles.trusted import TrustedState
from roles.worker.generation import HeldPolicy

log = structlog.get_logger()

FETCH_TIMEOUT = 3600.0
"""Seconds for one checkpoint; the transfer itself gives up after a minute without a shard."""
RETRY_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""Nothing is to be fetched, and whatever changes that wakes us."""
AHEAD_TRIED, MOST_OFFERS = 64, 16


class Policies:
    """Keeps `newest` current. `bad` names checkpoints that the engine refused."""

    def __init__(
        self, *, trusted: TrustedState, observer: Observer, relays: Relays, folder: Path, receipts: Receipts
    ) -> None:
        self._trusted, self._observer, self._relays, self._receipts = trusted, observer, relays, receipts
        self._folder = folder
        self._watch = observer.watch()
        self.newest: HeldPolicy | None = None
        self._fetching = self._ahead = ""
        self._offers: dict[str, Offer] = {}
        self._tried: dict[str, None] = {}  # fetched ahead, or not to be had
        self.bad: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    async def run(self) -> None:
        """Fetch each new commit as it is seen, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relays.watch(self._hear, held=lambda: self.newest.manifest if self.newest else ""))
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            for commit in self._wanted():
                if await self._fetch(commit):
                    break
            offer = self._next_offer()
            if offer is not None and not self._wanted():
                await self._fetch_ahead(offer)
            else:
                await self._watch.changed(RETRY_SECONDS if self._wanted() else IDLE_SECONDS)

    def _hear(self, offer: Offer) -> None:
        self._offers[offer.manifest] = offer
        while len(self._offers) > MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        if self._next_offer() is not None:
            self._observer.wake()

    def _next_offer(self) -> Offer | None:
        """One that would be the next to be committed."""
        view = self._trusted.view
        if view is None:
            return None
        newest = max((commit.step for commit in view.commits.values()), default=-1)
        offers = (offer for offer in self._offers.values() if offer.step == newest + 1)
        return next((offer for offer in offers if offer.manifest not in self._tried), None)

    async def _fetch_ahead(self, offer: Offer) -> None:
        """Have the checkpoint here before it counts. Given up for a commit of another one."""
        self._tried[offer.manifest] = None
        while len(self._tried) > AHEAD_TRIED:
            del self._tried[next(iter(self._tried))]
        async with asyncio.TaskGroup() as group:
            self._ahead = offer.manifest
            fetching = group.create_task(self._try_ahead(offer.manifest))
            while not fetching.done():
                change = group.create_task(self._watch.changed(IDLE_SECONDS))
                await asyncio.wait([fetching, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if any(commit.manifest != offer.manifest for commit in self._wanted()):
                    fetching.cancel()

    async def _try_ahead(self, manifest: str) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                await self._relays.fetch_checkpoint(manifest, self._folder)
        except (NodeError, TimeoutError) as error:
            log.info("weights.not_ahead", manifest=manifest, why=str(error) or "no answer in time")

    def _wanted(self) -> list[Commit]:
        """Commits newer than what is held, newest first; older ones only where the open step may still use them."""
        view = self._trusted.view
        held = self.newest.step if self.newest else -1
        commits = view.commits.values() if view else ()
        newer = sorted((c for c in commits if c.step > held and c.manifest not in self.bad), key=lambda c: -c.step)
        return newer[: self._trusted.spec.training.async_level + 1]

    async def _fetch(self, commit: Commit) -> bool:
        started, self._fetching = time.monotonic(), commit.manifest
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                path = await self._relays.fetch_checkpoint(commit.manifest, self._folder)
        except (NodeError, TimeoutError) as error:
            log.warning("weights.unreachable", policy_step=commit.step, why=str(error) or "no answer in time")
            return False
        self._receipts.note(commit.step, commit.manifest)
        self.newest = HeldPolicy(commit.step, commit.manifest, path)
        log.info("weights.fetched", policy_step=commit.step, seconds=round(time.monotonic() - started, 3))
        self._observer.wake()
        return True

    def prune(self, keep: HeldPolicy) -> None:
        """Delete all checkpoints, half-fetched ones too, but the one in use, the newest, and what is being fetched.
        Blocking."""
        newest = self.newest.manifest if self.newest else keep.manifest
        prune_checkpoints(self._folder, keep={keep.manifest, newest, self._fetching, self._ahead})
