"""How a relay rebuilds a checkpoint from deltas and a base that it stores in shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

import structlog

from dht.errors import Malformed, NodeError
from dht.identity import NodeId
from roles.shardcast.catalogue import KeptCheckpoint, KeptDelta, Parcel
from roles.shardcast.chains import find_chain
from roles.shardcast.delta import WORTHWHILE_SHARE
from roles.shardcast.errors import WrongBytes
from roles.shardcast.gather import ShardGatherer
from roles.shardcast.link import RelayLink
from roles.shardcast.rebuild import ShardBase, rebuild
from roles.shardcast.shelf import Shelf
from roles.shardcast.sinks import Sink

log = structlog.get_logger("relay")

DELTA_SECONDS = 30.0
"""Time to fetch a delta from other relays, besides its transfer at the slowest pace; after
that the shards are pulled."""


class Rebuilder:
    """Rebuilds checkpoints from deltas. `opener` makes the sinks for a parcel's shards; `arrived` is called with the
    bytes fetched. Without a link only a delta that was pushed here completely is of use."""

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
        self._turn = asyncio.Lock()  # chains share deltas, which are fetched once; one rebuild uses all cores

    def way_to(self, kept: KeptCheckpoint) -> list[KeptDelta]:
        """Deltas to apply in order to get a checkpoint from one that is completely here. Empty when there is no such
        chain, or fetching the shards is shorter."""
        return self._ways(kept, self.bases())

    def bases(self) -> set[str]:
        """Manifest digests of the checkpoints held completely."""
        return {base.digest for base in self._shelf.catalogue if not self._shelf.missing(base)}

    def may_come(self, kept: KeptCheckpoint, pulling: Collection[str]) -> bool:
        """Whether there will be a chain (`way_to`) once the checkpoints being pulled are complete."""
        return bool(self._ways(kept, pulling))

    def _ways(self, kept: KeptCheckpoint, held: Collection[str]) -> list[KeptDelta]:
        deltas = [delta for delta in self._shelf.catalogue.deltas() if delta.digest not in self._refused]
        return find_chain(deltas, kept.digest, held, below=WORTHWHILE_SHARE * kept.layout.total + 1)

    async def rebuild(self, kept: KeptCheckpoint, chain: Sequence[KeptDelta], hints: Sequence[NodeId]) -> bool:
        """Fetch missing shards of the deltas and rebuild the checkpoint. Returns whether it is complete now."""
        started = time.monotonic()
        try:
            async with self._turn:
                for delta in chain:
                    await self._fetch(delta, hints)
                await self._apply(kept, chain)
        except (NodeError, OSError, TimeoutError) as error:
            log.info("delta.unused", manifest=kept.digest, reason=str(error) or "no relay gives it in time")
            return False
        log.info(
            "checkpoint.rebuilt",
            step=kept.manifest.step,
            manifest=kept.digest,
            delta=sum(delta.size for delta in chain),
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

    async def _apply(self, kept: KeptCheckpoint, chain: Sequence[KeptDelta]) -> None:
        base = self._shelf.catalogue.find(chain[0].base)
        held = await self._shelf.store.intact_paths(base.manifest.shards) if base else None
        parts = [await self._shelf.store.intact_paths(delta.delta.shards) for delta in chain]
        files = [paths for paths in parts if paths is not None]
        if base is None or held is None or len(files) < len(chain):
            raise OSError("the base or a delta is not whole here any more")
        try:
            await rebuild(kept.layout, self._opener(kept), base=ShardBase(base.layout, held), chain=files)
        except (Malformed, WrongBytes) as error:
            for delta in chain:
                self._refused.add(delta.digest)
                log.warning(
                    "delta.refused", delta=delta.digest, manifest=kept.digest, trainer=delta.signer, reason=str(error)
                )
            raise
