"""Shortcuts to a checkpoint: deltas from one that the node already holds, found at relays, fetched and applied.

A relay's list is only a hint: each delta's row is signed by a trainer, and the rebuilt checkpoint is verified shard by
shard. Failures here only cost time, since shards still missing are fetched from relays.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, PeerError, TransportError
from dht.identity import NodeId
from roles.messages import CheckpointDelta
from roles.shardcast.assembly import Assembly, load_checkpoint_manifest
from roles.shardcast.chains import find_chain
from roles.shardcast.delta import WORTHWHILE_SHARE, FolderBase
from roles.shardcast.errors import WrongBytes
from roles.shardcast.gather import ShardGatherer
from roles.shardcast.link import RelayLink
from roles.shardcast.manifest import check_delta
from roles.shardcast.rebuild import rebuild
from roles.shardcast.replies import DeltaHint, RelayInfo
from roles.shardcast.shards import is_checkpoint_intact

log = structlog.get_logger("shardcast")

ASKED = 3
"""Number of relays asked for deltas."""
LOOK_SECONDS = 2.0
PATIENCE = 10.0
"""Seconds for a delta besides its transfer at the slowest pace: it may be listed before it is sent."""
TRIES = 3
MOST_REFUSED = 256
MOST_HEARD = 64


@dataclass(slots=True)
class Fetched:
    """Bytes fetched for one checkpoint: those of deltas, and all of them by relay."""

    delta: int = 0
    by_relay: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Link:
    """One delta of a chain, fetched: its signed row and its files."""

    hint: DeltaHint
    row: Envelope
    files: list[Path]


class Shortcuts:
    """One client's use of deltas. Bad ones are not tried again."""

    def __init__(self, link: RelayLink, *, trainers: frozenset[NodeId]) -> None:
        self._link, self._trainers = link, trainers
        self._refused: dict[str, None] = {}
        self._heard: dict[str, DeltaHint] = {}
        self._doubted: set[NodeId] = set()  # relays that listed something false, until the next checkpoint

    def hear(self, hints: Iterable[DeltaHint]) -> None:
        """Record deltas that a relay says lead on from what this node holds. If they do, no relay needs to be asked."""
        for hint in hints:
            self._heard[hint.delta] = hint
            while len(self._heard) > MOST_HEARD:
                del self._heard[next(iter(self._heard))]

    async def fill(self, assembly: Assembly, fetched: Fetched) -> None:
        """Fill in the shards that deltas give, if they are the shorter way. Failures are logged and only cost time."""
        self._doubted.clear()
        for _ in range(TRIES):
            try:
                await self._follow(assembly, fetched)
                break
            except PeerError as error:  # a lie or a bad delta: there may be another chain without it
                log.info("delta.unused", manifest=assembly.digest, reason=str(error))
            except (NodeError, OSError) as error:
                log.info("delta.unused", manifest=assembly.digest, reason=str(error))
                break
        await asyncio.to_thread(shutil.rmtree, assembly.scratch, ignore_errors=True)  # a cancelled one resumes there

    async def _follow(self, assembly: Assembly, fetched: Fetched) -> None:
        """Fetch and apply the shortest chain of deltas, if there is one. Raises NodeError or OSError when it fails;
        deltas that do not fit their base are logged and never tried again."""
        below = WORTHWHILE_SHARE * sum(assembly.layout.size(index) for index in assembly.missing)
        into = assembly.final.parent
        hints = await self._find(assembly.digest, into, below=below)
        if not hints:
            return
        chain = [await self._fetch(hint, assembly.scratch, fetched) for hint in hints]
        base = into / hints[0].base
        try:
            await rebuild(
                assembly.layout,
                lambda index: assembly.writer(index) if index in assembly.missing else None,
                base=FolderBase(base),
                chain=[link.files for link in chain],
            )
        except (Malformed, WrongBytes) as error:
            await self._blame(chain, base, error)
            raise

    async def _find(self, target: str, into: Path, *, below: float) -> list[DeltaHint]:
        """Deltas to apply in order, from a checkpoint in `into` to `target`; empty when fetching the shards is shorter.
        Deltas that relays announced unasked are preferred."""
        held = await asyncio.to_thread(_held, into)
        if not held:
            return []
        heard = set(filter(self._may_be, self._heard.values()))
        return find_chain(heard, target, held, below=below) or find_chain(
            heard | await self._ask(target), target, held, below=below
        )

    async def _ask(self, target: str) -> set[DeltaHint]:
        """Deltas that relays list, from all those asked until one knew a delta to `target`."""
        hints = set[DeltaHint]()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._ask_one(relay)) for relay in self._link.order(most=ASKED)]
            for answer in asyncio.as_completed(asked, timeout=LOOK_SECONDS):
                try:
                    hints |= set(filter(self._may_be, await answer))
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

    async def _fetch_row(self, hint: DeltaHint) -> tuple[Envelope, CheckpointDelta]:
        trouble = "no relay is known"
        for relay in self._link.order([hint.relay.node]):
            try:
                envelope = await self._link.receive_manifest(relay, hint.delta)
                row = check_delta(envelope, run=self._link.run, trainers=self._trainers)
            except (PeerError, TransportError) as error:
                trouble = str(error)
                continue
            if (row.base, row.target, row.size) != (hint.base, hint.target, hint.size):
                self._distrust(hint.relay)
                self._link.report_cheat(hint.relay, "it lists a delta as what it is not")
                raise PeerError("a relay lists a delta as what it is not")
            return envelope, row
        self._refuse(hint)
        self._distrust(hint.relay)
        self._link.choice.failed(hint.relay.node)
        raise PeerError(f"no relay has the row of delta {hint.delta[:12]}, which one lists: {trouble}")

    def _may_be(self, hint: DeltaHint) -> bool:
        return hint.delta not in self._refused and hint.relay.node not in self._doubted

    def _distrust(self, relay: RelayInfo) -> None:
        """Drop everything else this relay listed, since it may have made up hundreds."""
        self._doubted.add(relay.node)
        self._heard = {name: hint for name, hint in self._heard.items() if hint.relay.node != relay.node}

    def _refuse(self, hint: DeltaHint) -> None:
        self._refused[hint.delta] = None
        while len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _fetch(self, hint: DeltaHint, scratch: Path, fetched: Fetched) -> _Link:
        """A delta in a folder of its own, every shard verified. One fetched before a restart is still there."""
        envelope, row = await self._fetch_row(hint)
        parcel = Assembly(scratch, envelope, row, is_durable=False)
        link = _Link(hint, envelope, [parcel.final / file.name for file in row.files])
        if await asyncio.to_thread(is_checkpoint_intact, parcel.final, parcel.layout):
            return link
        await asyncio.to_thread(shutil.rmtree, parcel.final, ignore_errors=True)
        if not await asyncio.to_thread(parcel.open):
            raise TransportError("another process of this machine fetches that delta")
        gatherer = ShardGatherer(self._link, parcel.layout, parcel.writer, digest=parcel.digest)
        try:
            async with asyncio.timeout(PATIENCE + row.size / self._link.limits.slowest):
                await gatherer.gather(tuple(parcel.missing))
            await asyncio.to_thread(parcel.finish)
            return link
        except TimeoutError as error:
            raise TransportError("relays do not give the delta in time") from error
        finally:
            fetched.delta += sum(gatherer.served.values())
            fetched.by_relay += gatherer.served
            parcel.close()

    async def _blame(self, chain: Sequence[_Link], base: Path, error: NodeError) -> None:
        """After a failed rebuild: delete the base if it is damaged, else refuse the deltas,
        whose bytes are as signed."""
        kept = await asyncio.to_thread(
            load_checkpoint_manifest, base, digest=base.name, run=self._link.run, trainers=self._trainers
        )
        if kept is None:
            log.warning("checkpoint.damaged", manifest=base.name)
            await asyncio.to_thread(shutil.rmtree, base, ignore_errors=True)
            return
        for link in chain:
            self._refuse(link.hint)
            log.warning(
                "delta.refused",
                delta=link.hint.delta,
                manifest=link.hint.target,
                trainer=link.row.signer,
                reason=str(error),
            )


def _held(into: Path) -> set[str]:
    """Manifest digests of the checkpoints in a folder."""
    return {path.name for path in into.iterdir() if not path.name.startswith(".")} if into.is_dir() else set()
