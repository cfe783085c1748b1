"""The trainer's side: a manifest goes to every relay that answers, then its shards to two of them, or one, never none.

A delta, if available, goes first, and a relay that holds the base is left to rebuild the shards from it. The other
relays pull. A slow second copy is finished in the background by `run`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, TransportError, first_error
from dht.identity import NodeId
from roles.shardcast.copies import replicate
from roles.shardcast.errors import NotHeld, RelayRefused
from roles.shardcast.lanes import FilePart
from roles.shardcast.link import RelayLink
from roles.shardcast.manifest import check_delta, check_manifest, manifest_digest
from roles.shardcast.replies import HELD_OPEN, RelayInfo
from roles.shardcast.shards import Layout

log = structlog.get_logger("shardcast")

COPIES = 2
PATIENCE = 5.0
"""Seconds the second copy may take longer than the first."""
RETRY = 1.0
SHARDS_AT_ONCE = 2
"""Concurrent shards to one relay: enough to fill the link, few enough that the first one is there soon."""
SHARD_TRIES = 3
MOST_OFFERED = 32
OFFER_SECONDS = 10.0
OFFER_GRACE = 0.3
"""Seconds to wait for more relays once two have taken the manifest."""
ALONE_GRACE = 2.0
"""The same once one has taken it: a relay that is cut off must not delay the checkpoint for longer."""
BACKGROUND_TRIES = 20
BREATH = 0.25
"""Minimum seconds between two requests for a relay's holdings."""
SHARD_TIMES = 8
"""A relay that gets a shard from its neighbours may take this many times as long as sending one took."""
REBUILD_PATIENCE = 10.0
"""Seconds a relay may take for the next shard that it rebuilds from a delta; after that the shards are sent to it."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Something published in shards: a checkpoint's files, or a delta's file."""

    envelope: Envelope
    directory: Path
    layout: Layout

    @property
    def digest(self) -> str:
        """Digest of the signed row."""
        return manifest_digest(self.envelope)

    def parts(self, index: int) -> list[FilePart]:
        """Where a shard's bytes are on disk."""
        pieces = self.layout.pieces(index)
        return [FilePart(self.directory / piece.name, piece.offset, piece.length) for piece in pieces]


@dataclass(frozen=True, slots=True)
class _Cargo:
    """A checkpoint, and a delta to it from `base` (a manifest digest). `whole`: every shard is sent, whatever a relay
    can rebuild. `unsent`: shards that no relay has or is being sent."""

    whole: bool
    checkpoint: _Parcel
    step: int
    unsent: list[int]
    delta: _Parcel | None = None
    base: str = ""

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        return self.checkpoint.digest


class Origin:
    """Publishes checkpoints. `run` makes outstanding copies; without it one relay may stay the only holder."""

    def __init__(self, link: RelayLink, *, trainers: Collection[NodeId], patience: float = PATIENCE) -> None:
        self._link, self._trainers, self._patience = link, frozenset(trainers), patience
        self._refusing: set[NodeId] = set()  # already logged, since a dead relay is asked again every second
        self._owed: asyncio.Queue[tuple[_Cargo, frozenset[str]]] = asyncio.Queue()

    async def publish(
        self,
        envelope: Envelope,
        directory: Path,
        *,
        delta: tuple[Envelope, Path] | None = None,
        whole: bool = True,
        deadline: float = 120.0,
    ) -> tuple[NodeId, ...]:
        """Put a checkpoint on relays. Returns the ids of those that hold every shard.

        `delta`: the signed row of a delta to it, and the folder of its file. With `whole` False, relays that hold its
        base rebuild the shards themselves, and only the others are sent them.

        Tries for `deadline` seconds. Raises TransportError when no relay holds it by then, PeerError when an envelope
        is not of this run. May be called again after a restart; what is there is not sent again.
        """
        cargo = self._load(envelope, directory, delta, whole)
        until, last = time.monotonic() + deadline, "no relay is known"
        while True:
            answered, last = await self._offer(cargo, last)
            holders = await replicate(
                answered, partial(self._push, cargo), copies=COPIES, patience=self._patience, hedge=False
            )
            if holders:
                break
            if time.monotonic() + RETRY > until:
                raise TransportError(f"no relay took the checkpoint of step {cargo.step}: {last}")
            await asyncio.sleep(RETRY)
        if len(holders) < COPIES:
            self._owed.put_nowait((cargo, frozenset(holders)))
        self._say(cargo, holders)
        return holders

    def _load(self, envelope: Envelope, directory: Path, delta: tuple[Envelope, Path] | None, whole: bool) -> _Cargo:
        manifest = check_manifest(envelope, run=self._link.run, trainers=self._trainers)
        checkpoint = _Parcel(envelope, directory, Layout(manifest))
        unsent = list(range(len(manifest.shards)))
        if delta is None:
            return _Cargo(whole, checkpoint, manifest.step, unsent)
        row = check_delta(delta[0], run=self._link.run, trainers=self._trainers)
        if row.target != checkpoint.digest:
            raise Malformed("the delta leads to another checkpoint")
        return _Cargo(whole, checkpoint, manifest.step, unsent, _Parcel(delta[0], delta[1], Layout(row)), row.base)

    async def run(self) -> None:
        """Finish second copies as relays appear, one checkpoint after another, with a limited number of tries each."""
        while True:
            cargo, holders = await self._owed.get()
            for _ in range(BACKGROUND_TRIES):
                if await self._second_copy(cargo, holders):
                    break
                await asyncio.sleep(RETRY)

    async def _second_copy(self, cargo: _Cargo, holders: frozenset[str]) -> bool:
        if not self._owed.empty() or not cargo.checkpoint.directory.exists():
            return True  # a newer checkpoint is more useful to the network
        answered, _ = await self._offer(cargo, "")
        for relay in answered:
            if relay.node not in holders and await self._push(cargo, relay):
                self._say(cargo, (relay.node,))
                return True
        return False

    async def _offer(self, cargo: _Cargo, last: str) -> tuple[list[RelayInfo], str]:
        """Send the signed rows to all relays concurrently. Returns those that took them, in order of
        choice, and the last error.

        A slow relay is not waited for once two have answered; it learns of the manifest from its row.
        """
        relays = self._link.order(most=MOST_OFFERED)
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(self._offer_one(relay, cargo)): relay for relay in relays}
            await self._await_enough(tasks)
            for task in tasks:
                task.cancel()
        answers = {relay.node: task.result() for task, relay in tasks.items() if not task.cancelled()}
        taken = [relay for relay in relays if answers.get(relay.node) == ""]
        return taken, next((trouble for trouble in answers.values() if trouble), last)

    async def _await_enough(self, tasks: Iterable[asyncio.Task[str]]) -> None:
        pending, end = set(tasks), time.monotonic() + OFFER_SECONDS
        while pending:
            taken = sum(task not in pending and task.result() == "" for task in tasks)
            left = max(0.0, end - time.monotonic())
            timeout = OFFER_GRACE if taken >= COPIES else min(left, ALONE_GRACE) if taken else left
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return

    async def _offer_one(self, relay: RelayInfo, cargo: _Cargo) -> str:
        try:
            if cargo.delta is not None:  # first, so that a relay that starts at the manifest knows of it
                with suppress(RelayRefused):
                    await self._link.send_manifest(relay, cargo.delta.envelope)
            await self._link.send_manifest(relay, cargo.checkpoint.envelope)
        except NodeError as error:
            if relay.node not in self._refusing:
                self._refusing.add(relay.node)
                log.warning("manifest.refused", relay=relay.node, reason=str(error))
            return str(error)
        self._refusing.discard(relay.node)
        return ""

    async def _push(self, cargo: _Cargo, relay: RelayInfo) -> bool:
        try:
            if cargo.delta is None or not await self._push_delta(cargo, cargo.delta, relay):
                await self._spread(cargo, relay)
        except (NodeError, OSError) as error:
            log.warning("copy.failed", relay=relay.node, reason=str(error))
            return False
        return True

    async def _push_delta(self, cargo: _Cargo, delta: _Parcel, relay: RelayInfo) -> bool:
        """Send the delta, and wait while the relay rebuilds the checkpoint. Returns whether
        it then holds every shard."""
        try:
            await self._push_missing(delta, relay)
            if cargo.whole or not await self._link.read_holdings(relay, cargo.base):
                return False
            return await self._has_all(cargo.checkpoint, relay, patience=REBUILD_PATIENCE)
        except NotHeld:  # the relay does not have the base
            return False
        except (NodeError, OSError) as error:  # only the checkpoint itself matters
            log.info("delta.unsent", relay=relay.node, reason=str(error))
            return False

    async def _has_all(self, checkpoint: _Parcel, relay: RelayInfo, *, patience: float) -> bool:
        """Whether the relay comes to hold every shard, with at least one more in every `patience` seconds."""
        every, until = len(checkpoint.layout.manifest.shards), time.monotonic() + patience
        known = (await self._link.read_holdings(relay, checkpoint.digest)).bit_count()
        while known < every and (left := until - time.monotonic()) > 0:
            wait = min(left, HELD_OPEN)
            now = (await self._link.read_holdings(relay, checkpoint.digest, known=known, wait=wait)).bit_count()
            if now > known:
                known, until = now, time.monotonic() + patience
                await asyncio.sleep(BREATH)
        return known == every

    async def _spread(self, cargo: _Cargo, relay: RelayInfo) -> None:
        """Send the relay the shards that were not sent to another. The remaining ones it gets from the others, or from
        here if they do not arrive. So each shard crosses our line once, whatever the number of copies. A small
        checkpoint is sent directly, as waiting is not worth it. Raises NodeError, OSError."""
        if cargo.checkpoint.layout.total < self._link.limits.fan_out_from:
            await self._push_missing(cargo.checkpoint, relay)
            return
        held = await self._link.read_holdings(relay, cargo.digest)
        cargo.unsent[:] = [index for index in cargo.unsent if not held >> index & 1]
        began, before = time.monotonic(), len(cargo.unsent)
        await self._push_all(cargo.checkpoint, relay, cargo.unsent)
        patience = self._link.limits.fan_out + SHARD_TIMES * (time.monotonic() - began) / max(1, before)
        if not await self._has_all(cargo.checkpoint, relay, patience=patience):
            await self._push_missing(cargo.checkpoint, relay)

    async def _push_missing(self, parcel: _Parcel, relay: RelayInfo) -> None:
        """Send the shards that the relay lacks. Raises NodeError, OSError."""
        held = await self._link.read_holdings(relay, parcel.digest)
        queue = [index for index in range(len(parcel.layout.manifest.shards)) if not held >> index & 1]
        await self._push_all(parcel, relay, queue)

    async def _push_all(self, parcel: _Parcel, relay: RelayInfo, queue: list[int]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(SHARDS_AT_ONCE, len(queue))):
                    group.create_task(self._push_shards(relay, parcel, queue))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _push_shards(self, relay: RelayInfo, parcel: _Parcel, queue: list[int]) -> None:
        while queue:
            index = queue.pop()
            try:
                await self._push_shard(relay, parcel, index)
            except BaseException:
                queue.append(index)  # for another task that takes from the queue
                raise

    async def _push_shard(self, relay: RelayInfo, parcel: _Parcel, index: int) -> None:
        digest, parts = parcel.layout.manifest.shards[index], parcel.parts(index)
        for left in reversed(range(SHARD_TRIES)):
            try:
                await self._link.send_parts(relay, digest, parts)
                break
            except RelayRefused:
                raise
            except TransportError:
                if not left:
                    raise

    def _say(self, cargo: _Cargo, holders: Sequence[str]) -> None:
        log.info("checkpoint.copied", step=cargo.step, manifest=cargo.digest, relays=len(holders))
