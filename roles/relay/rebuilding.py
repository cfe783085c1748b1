"""A relay's way to a checkpoint without its bytes: a delta, and the base among its own shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import structlog

from dht.errors import Malformed, NodeError
from dht.identity import NodeId
from roles.shardcast.catalogue import KeptCheckpoint, KeptDelta, Parcel
from roles.shardcast.errors import WrongBytes
from roles.shardcast.gather import ShardGatherer
from roles.shardcast.link import RelayLink
from roles.shardcast.rebuild import ShardBase, rebuild
from roles.shardcast.shelf import Shelf
from roles.shardcast.sinks import Sink

log = structlog.get_logger("relay")

DELTA_SECONDS = 30.0
"""Time to fetch a delta from other relays, on top of its bytes at the slowest pace; then the shards themselves are pulled."""


class Rebuilder:
    """Rebuilds checkpoints from deltas. `opener` makes the sinks of a parcel's shards, `arrived` is told of bytes that were
    fetched; without a link only a delta that was pushed here whole is of use."""

    def __init__(
        self,
        shelf: Shelf,
        link: RelayLink | None,
        *,
        opener: Callable[[Parcel], Callable[[int], Sink | None]],
        arrived: Callable[[int], None],
    ) -> None:
        self._shelf, self._link, self._opener, self._arrived = shelf, link, opener, arrived
        self._refused: set[str] = set()

    def way_to(self, kept: KeptCheckpoint) -> KeptDelta | None:
        """A delta to a checkpoint whose base is here whole."""
        return next((delta for delta, base in self._ways(kept) if not self._shelf.missing(base)), None)

    def may_come(self, kept: KeptCheckpoint, pulling: Collection[str]) -> bool:
        """Whether there will be such a delta once what is being pulled is here."""
        return any(base.digest in pulling for _, base in self._ways(kept))

    def _ways(self, kept: KeptCheckpoint) -> Iterator[tuple[KeptDelta, KeptCheckpoint]]:
        for delta in self._shelf.catalogue.deltas(kept.digest):
            base = self._shelf.catalogue.find(delta.delta.base)
            if delta.digest not in self._refused and base is not None:
                yield delta, base

    async def rebuild(self, kept: KeptCheckpoint, delta: KeptDelta, hints: Sequence[NodeId]) -> bool:
        """Fetch what is missing of the delta and rebuild the checkpoint; whether it is whole now."""
        started = time.monotonic()
        try:
            await self._fetch(delta, hints)
            await self._apply(kept, delta)
        except (NodeError, OSError, TimeoutError) as error:
            log.info("delta.unused", manifest=kept.digest, reason=str(error) or "no relay gives it in time")
            return False
        log.info(
            "checkpoint.rebuilt",
            step=kept.manifest.step,
            manifest=kept.digest,
            delta=delta.delta.size,
            seconds=round(time.monotonic() - started, 3),
        )
        return True

    async def _fetch(self, delta: KeptDelta, hints: Sequence[NodeId]) -> None:
        missing = self._shelf.missing(delta)
        if not missing:
            return
        if self._link is None:
            raise OSError("the delta is not whole here")
        gatherer = ShardGatherer(
            self._link,
            delta.layout,
            self._opener(delta),
            digest=delta.digest,
            hints=hints,
            arrived=lambda index: self._arrived(delta.layout.size(index)),
        )
        async with asyncio.timeout(DELTA_SECONDS + delta.delta.size / self._link.limits.slowest):
            await gatherer.gather(missing)

    async def _apply(self, kept: KeptCheckpoint, delta: KeptDelta) -> None:
        base = self._shelf.catalogue.find(delta.delta.base)
        held = await self._shelf.store.intact_paths(base.manifest.shards) if base else None
        parts = await self._shelf.store.intact_paths(delta.delta.shards)
        if base is None or held is None or parts is None:
            raise OSError("the base or the delta is not whole here any more")
        try:
            await rebuild(kept.layout, self._opener(kept), base=ShardBase(base.layout, held), delta=parts)
        except (Malformed, WrongBytes) as error:
            self._refused.add(delta.digest)
            log.warning(
                "delta.refused", delta=delta.digest, manifest=kept.digest, trainer=delta.signer, reason=str(error)
            )
            raise
