"""The trainer's side: a manifest to every relay that answers, then its shards to two of them, never to none.

The other relays pull. A second copy that is slow is finished in the background by `run`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from dht.envelope import Envelope
from dht.errors import NodeError, TransportError
from dht.identity import NodeId
from roles.messages import CheckpointManifest
from roles.shardcast.copies import replicate
from roles.shardcast.errors import RelayRefused
from roles.shardcast.gather import first_error
from roles.shardcast.link import RelayInfo, RelayLink
from roles.shardcast.manifest import check_manifest, manifest_digest
from roles.shardcast.shards import Layout, read_shard

log = structlog.get_logger("shardcast")

COPIES = 2
PATIENCE = 5.0
"""Seconds the second copy may take longer than the first."""
RETRY = 1.0
SHARDS_AT_ONCE = 2
"""Sent beside each other to one relay: enough to fill the link, few enough that the first one is there soon."""
SHARD_TRIES = 3
MOST_OFFERED = 32
OFFER_SECONDS = 10.0
OFFER_GRACE = 0.3
"""Seconds to wait for more relays once two have taken the manifest."""
BACKGROUND_TRIES = 20


@dataclass(frozen=True, slots=True)
class _Cargo:
    envelope: Envelope
    directory: Path
    layout: Layout

    @property
    def digest(self) -> str:
        """The manifest's."""
        return manifest_digest(self.envelope)


class Origin:
    """Publishes checkpoints. `run` makes the copies still owed; without it one relay may stay the only one."""

    def __init__(
        self, link: RelayLink, *, trainers: Sequence[NodeId] | frozenset[NodeId], patience: float = PATIENCE
    ) -> None:
        self._link, self._trainers, self._patience = link, frozenset(trainers), patience
        self._refusing: set[NodeId] = set()  # told already: a dead relay is asked again every second
        self._owed: asyncio.Queue[tuple[_Cargo, frozenset[str]]] = asyncio.Queue()

    async def publish(self, envelope: Envelope, directory: Path, *, deadline: float = 120.0) -> tuple[NodeId, ...]:
        """Put a checkpoint on relays; their ids come back, those that hold every shard.

        Tries for `deadline` seconds; raises TransportError when not one relay holds it then, PeerError when the
        envelope is no manifest of this run. May be called again after a restart: what is there is not sent again.
        """
        manifest = check_manifest(envelope, run=self._link.run, trainers=self._trainers)
        cargo = _Cargo(envelope, directory, Layout(manifest))
        until, last = time.monotonic() + deadline, "no relay is known"
        while True:
            answered, last = await self._offer(envelope, last)
            holders = await replicate(
                answered, partial(self._push, cargo), copies=COPIES, patience=self._patience, hedge=False
            )
            if holders:
                break
            if time.monotonic() + RETRY > until:
                raise TransportError(f"no relay took the checkpoint of step {manifest.step}: {last}")
            await asyncio.sleep(RETRY)
        if len(holders) < COPIES:
            self._owed.put_nowait((cargo, frozenset(holders)))
        self._say(manifest, holders)
        return holders

    async def run(self) -> None:
        """Finish second copies as relays appear, one checkpoint after the other, each with bounded tries."""
        while True:
            cargo, holders = await self._owed.get()
            for _ in range(BACKGROUND_TRIES):
                if await self._second_copy(cargo, holders):
                    break
                await asyncio.sleep(RETRY)

    async def _second_copy(self, cargo: _Cargo, holders: frozenset[str]) -> bool:
        if not self._owed.empty() or not cargo.directory.exists():
            return True  # a newer checkpoint is what the network needs
        answered, _ = await self._offer(cargo.envelope, "")
        for relay in answered:
            if relay.node not in holders and await self._push(cargo, relay):
                self._say(cargo.layout.manifest, (relay.node,))
                return True
        return False

    async def _offer(self, envelope: Envelope, last: str) -> tuple[list[RelayInfo], str]:
        """Send the manifest to relays at once; those that took it, in the order of choice, and the last trouble.

        A relay that is slow is not waited for once two have answered: it learns of the manifest from its row.
        """
        relays = self._link.order(most=MOST_OFFERED)
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(self._offer_one(relay, envelope)): relay for relay in relays}
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
            timeout = OFFER_GRACE if taken >= COPIES else max(0.0, end - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return

    async def _offer_one(self, relay: RelayInfo, envelope: Envelope) -> str:
        try:
            await self._link.send_manifest(relay, envelope)
        except NodeError as error:
            if relay.node not in self._refusing:
                self._refusing.add(relay.node)
                log.warning("manifest.refused", relay=relay.node, reason=str(error))
            return str(error)
        self._refusing.discard(relay.node)
        return ""

    async def _push(self, cargo: _Cargo, relay: RelayInfo) -> bool:
        try:
            held = await self._link.read_holdings(relay, cargo.digest)
            queue = [index for index in range(len(cargo.layout.manifest.shards)) if not held >> index & 1]
            async with asyncio.TaskGroup() as group:
                for _ in range(min(SHARDS_AT_ONCE, len(queue))):
                    group.create_task(self._push_shards(relay, cargo, queue))
        except (NodeError, BaseExceptionGroup) as errors:
            trouble = first_error(errors) if isinstance(errors, BaseExceptionGroup) else errors
            if not isinstance(trouble, NodeError | OSError):
                raise
            log.warning("copy.failed", relay=relay.node, reason=str(trouble))
            return False
        return True

    async def _push_shards(self, relay: RelayInfo, cargo: _Cargo, queue: list[int]) -> None:
        while queue:
            index = queue.pop()
            digest, size = cargo.layout.manifest.shards[index], cargo.layout.size(index)
            for left in reversed(range(SHARD_TRIES)):
                try:
                    await self._link.send(relay, digest, size, partial(_blocks, cargo, index), ask=False)
                    break
                except RelayRefused:
                    raise
                except TransportError:
                    if not left:
                        raise

    def _say(self, manifest: CheckpointManifest, holders: Sequence[str]) -> None:
        log.info("checkpoint.copied", step=manifest.step, manifest=manifest_digest(manifest), relays=len(holders))


async def _blocks(cargo: _Cargo, index: int) -> AsyncIterator[bytes]:
    """A shard from disk, read in a thread."""
    blocks = read_shard(cargo.directory, cargo.layout, index)
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block
