"""How many bytes each committed checkpoint has, as its signed manifest says: the most that receipts for it can be worth."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from dht.encoding import decode
from dht.errors import NodeError
from ledger.records import Commit
from roles.messages import CheckpointManifest
from roles.ports import Relays
from roles.validator.records import JudgedRows

FETCH_SECONDS = 20


class PublishedSizes:
    """Sizes by checkpoint, each fetched once and remembered: relays forget old manifests."""

    def __init__(self, *, relays: Relays, records: JudgedRows) -> None:
        self._relays, self._records = relays, records
        self._known = dict(records.published())

    async def of(self, steps: Iterable[int], commits: Mapping[int, Commit]) -> dict[int, int]:
        """Bytes by step, without steps that are not committed. Raises TransportError or TimeoutError while the manifest of
        one is not to be had."""
        return {step: await self._size(commits[step].manifest) for step in sorted(set(steps)) if step in commits}

    async def known(self, steps: Iterable[int], commits: Mapping[int, Commit]) -> dict[int, int]:
        """The same, without those that are not to be had now; relays that do not answer are not waited for twice."""
        found: dict[int, int] = {}
        for step in sorted(steps, reverse=True):
            try:
                found |= await self.of([step], commits)
            except NodeError:
                continue
            except TimeoutError:
                break
        return found

    async def _size(self, manifest: str) -> int:
        if manifest not in self._known:
            async with asyncio.timeout(FETCH_SECONDS):
                envelope = await self._relays.fetch_manifest(manifest)
            size = sum(file.size for file in decode(CheckpointManifest, envelope.payload).files)
            self._records.keep_published(manifest, size)
            self._known[manifest] = size
        return self._known[manifest]
