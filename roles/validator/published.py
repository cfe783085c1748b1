"""Sizes of committed checkpoints in bytes, from their signed manifests. A receipt is worth at most that much."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from dht.encoding import decode
from dht.errors import NodeError
from ledger.records import Commit
from roles.messages import CheckpointManifest
from roles.ports import Relays
from roles.validator.records import JudgedRows

FETCH_SECONDS = 20
LOOK_SECONDS = 0.5
NEWEST = 5
"""Number of newest commits whose manifests are fetched as they come; relays keep as many."""
TRIES = 40


class PublishedSizes:
    """Sizes by checkpoint, each fetched once and stored: relays often drop old manifests
    before their epoch is tallied."""

    def __init__(self, *, relays: Relays, records: JudgedRows) -> None:
        self._relays, self._records = relays, records
        self._known = dict(records.published())
        self._asked: Counter[str] = Counter()

    def remembers(self, manifest: str) -> bool:
        """Whether the checkpoint's size is known without a request."""
        return manifest in self._known

    async def keep_up(self, commits: Callable[[], Mapping[int, Commit]]) -> None:
        """Learn the size of each checkpoint while relays still have its manifest. Runs until cancelled."""
        while True:
            for _, commit in sorted(commits().items())[-NEWEST:]:
                if self.remembers(commit.manifest) or self._asked[commit.manifest] >= TRIES:
                    continue
                self._asked[commit.manifest] += 1
                with suppress(NodeError, TimeoutError):  # the relays may not have it yet
                    await self._size(commit.manifest)
            await asyncio.sleep(LOOK_SECONDS)

    async def of(self, steps: Iterable[int], commits: Mapping[int, Commit]) -> dict[int, int]:
        """Bytes by step; steps that are not committed are left out. Raises TransportError or TimeoutError while a
        manifest is unavailable."""
        return {step: await self._size(commits[step].manifest) for step in sorted(set(steps)) if step in commits}

    async def known(self, steps: Iterable[int], commits: Mapping[int, Commit]) -> dict[int, int]:
        """As `of`, but leaves out checkpoints whose manifest is unavailable now. It stops at the first timeout."""
        found: dict[int, int] = {}
        for step in sorted(steps, reverse=True):
            try:
                found |= await self.of([step], commits)
            except NodeError:
                continue
            except TimeoutError:
                break
        return found

    async def shown(self, steps: Iterable[int], commits: Mapping[int, Commit]) -> dict[int, int]:
        """As `known`, but only for checkpoints that relays have right now, so that anyone can verify the sizes."""
        found: dict[int, int] = {}
        for step in sorted(set(steps) & commits.keys(), reverse=True):
            with suppress(NodeError, TimeoutError):
                found[step] = await self._fetch(commits[step].manifest)
        return found

    async def _size(self, manifest: str) -> int:
        if not self.remembers(manifest):
            await self._fetch(manifest)
        return self._known[manifest]

    async def _fetch(self, manifest: str) -> int:
        async with asyncio.timeout(FETCH_SECONDS):
            envelope = await self._relays.fetch_manifest(manifest)
        size = sum(file.size for file in decode(CheckpointManifest, envelope.payload).files)
        if not self.remembers(manifest):
            self._records.keep_published(manifest, size)
            self._known[manifest] = size
        return size
