"""Fetches checkpoints that relays announce before the ledger shows their commit, so that they are here by then.

Nodes fetch as soon as they see a manifest, but use the checkpoint only once its commit is seen. A relay's announcement
is a hint: the client checks the signed manifest, and users of the checkpoint rely on the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from dht.errors import NodeError
from roles.observer import Observer
from roles.ports import Offer, Relays
from roles.trusted import TrustedState

log = structlog.get_logger()

FETCH_TIMEOUT = 3600.0
"""Seconds for one checkpoint; the transfer itself gives up after a minute without a shard."""
IDLE_SECONDS = 60.0
MOST_TRIED, MOST_OFFERS = 64, 16


class Prefetch:
    """Fetches ahead into `folder`. `manifest` is the digest being fetched, or fetched last (initially empty); keep it
    when pruning the folder."""

    def __init__(self, *, trusted: TrustedState, observer: Observer, relays: Relays, folder: Path) -> None:
        self._trusted, self._observer, self._relays, self._folder = trusted, observer, relays, folder
        self._watch = observer.watch()
        self.manifest = ""
        self._offers: dict[str, Offer] = {}
        self._tried: dict[str, None] = {}  # manifests fetched ahead, successfully or not

    async def listen(self, held: Callable[[], str]) -> None:
        """Collect announcements until cancelled; `held` returns the manifest digest of the
        checkpoint this node has now."""
        await self._relays.watch(self._hear, held=held)

    async def run(self, held: Callable[[], str]) -> None:
        """As `listen`, and fetch each, until cancelled: for a node that fetches committed checkpoints elsewhere."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.listen(held))
            watch = self._observer.watch()
            while True:
                offer = self.next_offer()
                if offer is None:
                    await watch.changed(IDLE_SECONDS)
                else:
                    await self.fetch(offer)

    def next_offer(self) -> Offer | None:
        """An announced checkpoint that would be the next to be committed and has not been tried yet."""
        view = self._trusted.view
        if view is None:
            return None
        newest = max((commit.step for commit in view.commits.values()), default=-1)
        offers = (offer for offer in self._offers.values() if offer.step == newest + 1)
        return next((offer for offer in offers if offer.manifest not in self._tried), None)

    async def fetch(self, offer: Offer) -> None:
        """Fetch an announced checkpoint. Gives up once the ledger commits a different one for
        its step, or a later one."""
        self._tried[offer.manifest] = None
        while len(self._tried) > MOST_TRIED:
            del self._tried[next(iter(self._tried))]
        async with asyncio.TaskGroup() as group:
            self.manifest = offer.manifest
            fetching = group.create_task(self._try(offer.manifest))
            while not fetching.done():
                change = group.create_task(self._watch.changed(IDLE_SECONDS))
                await asyncio.wait([fetching, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if self._is_overtaken(offer):
                    fetching.cancel()

    def _hear(self, offer: Offer) -> None:
        self._offers[offer.manifest] = offer
        while len(self._offers) > MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        if self.next_offer() is not None:
            self._observer.wake()

    def _is_overtaken(self, offer: Offer) -> bool:
        """Whether the ledger has a different checkpoint for its step, or a later one."""
        commits = self._trusted.view.commits.values() if self._trusted.view else ()
        return any(commit.step >= offer.step and commit.manifest != offer.manifest for commit in commits)

    async def _try(self, manifest: str) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                await self._relays.fetch_checkpoint(manifest, self._folder)
        except (NodeError, TimeoutError) as error:
            log.info("weights.not_ahead", manifest=manifest, why=str(error) or "no answer in time")
