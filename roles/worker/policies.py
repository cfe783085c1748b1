"""The weights a worker holds. The newest committed checkpoint is fetched in the background
while the current one samples.

A checkpoint that relays announce is fetched before its commit and used once it is committed.

Sampling switches weights between two submissions; it never waits for a fetch while its weights are in the window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from dht.errors import NodeError
from ledger.records import Commit
from roles.observer import Observer
from roles.ports import Relays
from roles.prefetch import FETCH_TIMEOUT, IDLE_SECONDS, Prefetch
from roles.receipts import Receipts
from roles.shardcast.assembly import prune_checkpoints
from roles.shardcast.errors import StoreFull
from roles.trusted import TrustedState
from roles.worker.generation import HeldPolicy

log = structlog.get_logger()

RETRY_SECONDS = 1.0
FULL_SECONDS = 15.0
"""Pause between two tries while the disk is full."""


class Policies:
    """Keeps `newest` at the newest committed checkpoint. `bad` holds manifest digests that the engine refused."""

    def __init__(
        self, *, trusted: TrustedState, observer: Observer, relays: Relays, folder: Path, receipts: Receipts
    ) -> None:
        self._trusted, self._observer, self._relays, self._receipts = trusted, observer, relays, receipts
        self._folder = folder
        self._watch = observer.watch()
        self.newest: HeldPolicy | None = None
        self._fetching = ""
        self._prefetch = Prefetch(trusted=trusted, observer=observer, relays=relays, folder=folder)
        self.bad: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    async def run(self) -> None:
        """Fetch each new commit as it is seen until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._prefetch.listen(lambda: self.newest.manifest if self.newest else ""))
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            pause = await self._fetch_any(self._wanted())
            offer = self._prefetch.next_offer()
            if offer is not None and not self._wanted():
                await self._prefetch.fetch(offer)
            elif pause:  # even if there is news: otherwise the same fetch would fail many times a second
                await asyncio.sleep(pause)
            else:
                await self._watch.changed(RETRY_SECONDS if self._wanted() else IDLE_SECONDS)

    async def _fetch_any(self, wanted: Sequence[Commit]) -> float:
        """Fetch the first available of these commits. Returns the seconds to wait before the next try: 0 when one was
        fetched or none is wanted."""
        for commit in wanted:
            try:
                if await self._fetch(commit):
                    return 0.0
            except StoreFull as error:  # the others are as large
                log.warning("weights.unreachable", policy_step=commit.step, why=str(error))
                return FULL_SECONDS
        return RETRY_SECONDS if wanted else 0.0

    def _wanted(self) -> list[Commit]:
        """Commits newer than the held one, newest first. Older ones are listed only as far as the
        open step may still use them."""
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
        except StoreFull:
            raise
        except (NodeError, TimeoutError) as error:
            log.warning("weights.unreachable", policy_step=commit.step, why=str(error) or "no answer in time")
            return False
        self._receipts.note(commit.step, commit.manifest)
        self.newest = HeldPolicy(commit.step, commit.manifest, path)
        log.info("weights.fetched", policy_step=commit.step, seconds=round(time.monotonic() - started, 3))
        self._observer.wake()
        return True

    def prune(self, keep: HeldPolicy) -> None:
        """Delete all checkpoints, including partly fetched ones, except the one in use, the newest, and
        those being fetched. Blocking."""
        newest = self.newest.manifest if self.newest else keep.manifest
        prune_checkpoints(self._folder, keep={keep.manifest, newest, self._fetching, self._prefetch.manifest})
