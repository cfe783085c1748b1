"""Short ways to a checkpoint: deltas from one a node holds already, found at the relays, fetched and applied.

What relays list is a hint; each delta's row is signed by a trainer, and the checkpoint it rebuilds is judged shard by
shard. Whatever goes wrong here costs time only: the shards that are missing still are fetched from relays.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, PeerError, TransportError
from dht.identity import NodeId
from roles.messages import CheckpointDelta, CheckpointManifest
from roles.shardcast.assembly import Assembly, load_checkpoint_manifest
from roles.shardcast.delta import WORTHWHILE_SHARE, FolderBase
from roles.shardcast.errors import WrongBytes
from roles.shardcast.gather import ShardGatherer
from roles.shardcast.link import DeltaHint, RelayInfo, RelayLink
from roles.shardcast.manifest import check_delta
from roles.shardcast.rebuild import rebuild

log = structlog.get_logger("shardcast")

ASKED = 3
"""Relays asked for deltas."""
LOOK_SECONDS = 2.0
PATIENCE = 10.0
"""Seconds for a delta on top of its bytes at the slowest pace: it may be listed before it is sent."""
TRIES = 3
MOST_REFUSED = 256
LONGEST_CHAIN = 4
"""Deltas applied one after the other: relays keep five checkpoints, so there are no more."""


FetchManifest = Callable[[str, Sequence[NodeId]], Awaitable[tuple[Envelope, CheckpointManifest]]]
"""A signed manifest by its digest, judged. Raises TransportError."""


@dataclass(slots=True)
class Fetched:
    """Bytes that came for one checkpoint: those of deltas, and all of them by relay."""

    delta: int = 0
    by_relay: Counter[str] = field(default_factory=Counter)


def find_chain(hints: Collection[DeltaHint], target: str, held: Collection[str], *, below: float) -> list[DeltaHint]:
    """The cheapest chain of deltas from a checkpoint that is held to `target`, in the order to apply them; empty when
    there is none, or none with fewer than `below` bytes.

    `A -> B (5 bytes), B -> C (5), A -> C (12)`, A held, C wanted: `[A -> B, B -> C]`.
    """
    ways: dict[str, list[DeltaHint]] = {target: []}
    for _ in range(LONGEST_CHAIN):
        for hint in hints:
            onward = ways.get(hint.target)
            way = None if onward is None else [hint, *onward]
            if way and len(way) <= LONGEST_CHAIN and _cost(way) < _cost(ways.get(hint.base), none=below):
                ways[hint.base] = way
    found = [way for base, way in ways.items() if base in held and way]
    return min(found, key=_cost, default=[])


def _cost(way: list[DeltaHint] | None, *, none: float = 0) -> float:
    return none if way is None else sum(hint.size for hint in way)


class Shortcuts:
    """Deltas as one client uses them. Those that turned out to be bad are not tried again."""

    def __init__(self, link: RelayLink, *, trainers: frozenset[NodeId], fetch_manifest: FetchManifest) -> None:
        self._link, self._trainers, self._fetch_manifest = link, trainers, fetch_manifest
        self._refused: dict[str, None] = {}

    async def fill(self, assembly: Assembly, relays: Sequence[NodeId], fetched: Fetched) -> None:
        """Fill in what deltas give, if they are the shorter way. What goes wrong is said, and costs time only."""
        for _ in range(TRIES):
            try:
                await self._follow(assembly, relays, fetched)
                break
            except PeerError as error:  # a lie, or a bad delta: there may be another way, without it
                log.info("delta.unused", manifest=assembly.digest, reason=str(error))
            except (NodeError, OSError) as error:
                log.info("delta.unused", manifest=assembly.digest, reason=str(error))
                break
        await asyncio.to_thread(shutil.rmtree, assembly.scratch, ignore_errors=True)  # who is stopped goes on there

    async def _follow(self, assembly: Assembly, relays: Sequence[NodeId], fetched: Fetched) -> None:
        """Go the shortest way there is, if any."""
        below = WORTHWHILE_SHARE * sum(assembly.layout.size(index) for index in assembly.missing)
        into = assembly.final.parent
        chain = await self._find(assembly.digest, into, below=below, relays=relays)
        base = into / chain[0].base if chain else into
        for hint in chain[:-1]:
            base = await self._step_over(hint, assembly.scratch, base=base, relays=relays, fetched=fetched)
        for hint in chain[-1:]:
            await self._take(hint, assembly, base=base, relays=relays, fetched=fetched)

    async def _step_over(
        self, hint: DeltaHint, scratch: Path, *, base: Path, relays: Sequence[NodeId], fetched: Fetched
    ) -> Path:
        """Rebuild a checkpoint that lies on the way to the one wanted; its folder."""
        middle = Assembly(scratch, *await self._fetch_manifest(hint.target, relays))
        if not await asyncio.to_thread(middle.open):
            raise TransportError("another process of this machine is at a checkpoint on the way")
        try:
            await self._take(hint, middle, base=base, relays=relays, fetched=fetched)
            return await asyncio.to_thread(middle.finish)
        finally:
            middle.close()

    async def _find(self, target: str, into: Path, *, below: float, relays: Sequence[NodeId]) -> list[DeltaHint]:
        """Deltas to apply one after the other, the first to a checkpoint in `into`, the last to give `target`; empty when
        the shards themselves are the shorter way."""
        held = await asyncio.to_thread(_held, into)
        if not held:
            return []
        hints = await self._ask(target, relays)
        return find_chain(hints, target, held, below=below)

    async def _ask(self, target: str, relays: Sequence[NodeId]) -> set[DeltaHint]:
        """What some relays list, all that was told until one knew of a delta to `target`."""
        hints = set[DeltaHint]()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._ask_one(relay)) for relay in self._link.order(relays, most=ASKED)]
            for answer in asyncio.as_completed(asked, timeout=LOOK_SECONDS):
                try:
                    hints |= {hint for hint in await answer if hint.delta not in self._refused}
                except TimeoutError:
                    break
                if any(hint.target == target for hint in hints):
                    break
            for task in asked:
                task.cancel()
        return hints

    async def _ask_one(self, relay: RelayInfo) -> set[DeltaHint]:
        try:
            return set(await self._link.read_deltas(relay))
        except (PeerError, TransportError):
            return set()

    async def _take(
        self, hint: DeltaHint, assembly: Assembly, *, base: Path, relays: Sequence[NodeId], fetched: Fetched
    ) -> None:
        """Fetch a delta and fill the assembly with what it makes of `base`, a checkpoint's folder; shards done stay done.

        Raises NodeError or OSError when that does not go; a delta that does not fit its base is said and never tried
        again.
        """
        envelope, row = await self._fetch_row(hint, relays)
        folder = await self._fetch(envelope, row, assembly.scratch, relays=relays, fetched=fetched)
        try:
            await rebuild(
                assembly.layout,
                lambda index: assembly.writer(index) if index in assembly.missing else None,
                base=FolderBase(base),
                delta=[folder / file.name for file in row.files],
            )
        except (Malformed, WrongBytes) as error:
            await self._blame(hint, envelope, base, error)
            raise

    async def _fetch_row(self, hint: DeltaHint, relays: Sequence[NodeId]) -> tuple[Envelope, CheckpointDelta]:
        trouble = "no relay is known"
        for relay in self._link.order([hint.relay.node, *relays]):
            try:
                envelope = await self._link.receive_manifest(relay, hint.delta)
                row = check_delta(envelope, run=self._link.run, trainers=self._trainers)
            except (PeerError, TransportError) as error:
                trouble = str(error)
                continue
            if (row.base, row.target, row.size) != (hint.base, hint.target, hint.size):
                self._link.report_cheat(hint.relay, "it lists a delta as what it is not")
                raise PeerError("a relay lists a delta as what it is not")
            return envelope, row
        self._refuse(hint)
        self._link.choice.failed(hint.relay.node)
        raise PeerError(f"no relay has the row of delta {hint.delta[:12]}, which one lists: {trouble}")

    def _refuse(self, hint: DeltaHint) -> None:
        self._refused[hint.delta] = None
        while len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _fetch(
        self, envelope: Envelope, row: CheckpointDelta, scratch: Path, *, relays: Sequence[NodeId], fetched: Fetched
    ) -> Path:
        """The folder of the delta's file, every shard verified."""
        parcel = Assembly(scratch, envelope, row)
        await asyncio.to_thread(shutil.rmtree, parcel.final, ignore_errors=True)  # of a kill before it was applied
        if not await asyncio.to_thread(parcel.open):
            raise TransportError("another process of this machine fetches that delta")
        gatherer = ShardGatherer(self._link, parcel.layout, parcel.writer, digest=parcel.digest, hints=relays)
        try:
            async with asyncio.timeout(PATIENCE + row.size / self._link.limits.slowest):
                await gatherer.gather(tuple(parcel.missing))
            return await asyncio.to_thread(parcel.finish)
        except TimeoutError as error:
            raise TransportError("relays do not give the delta in time") from error
        finally:
            fetched.delta += sum(gatherer.served.values())
            fetched.by_relay += gatherer.served
            parcel.close()

    async def _blame(self, hint: DeltaHint, row: Envelope, base: Path, error: NodeError) -> None:
        """The base, when it is damaged, else whoever signed the delta: its bytes are those that were signed."""
        kept = await asyncio.to_thread(
            load_checkpoint_manifest, base, digest=hint.base, run=self._link.run, trainers=self._trainers
        )
        if kept is None:
            log.warning("checkpoint.damaged", manifest=hint.base)
            await asyncio.to_thread(shutil.rmtree, base, ignore_errors=True)
            return
        self._refuse(hint)
        log.warning("delta.refused", delta=hint.delta, manifest=hint.target, trainer=row.signer, reason=str(error))


def _held(into: Path) -> set[str]:
    """Manifest digests of the checkpoints in a folder."""
    return {path.name for path in into.iterdir() if not path.name.startswith(".")} if into.is_dir() else set()
