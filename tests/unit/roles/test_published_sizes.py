"""Sizes of checkpoints, learnt while relays still have the manifests, so that validators can
check each other's tallies later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dht.encoding import ZERO_DIGEST
from ledger.records import Commit
from roles.shardcast.manifest import build_manifest, manifest_digest, seal_manifest
from roles.validator.published import PublishedSizes
from roles.validator.records import JudgedRows
from tests.builders import TRAINER, MemoryRelays

RUN = "ab" * 32
SIZE = 1000


class World:
    """Relays with checkpoints, one validator's memory, and the ledger's commits."""

    def __init__(self, folder: Path) -> None:
        self.relays, self.commits = MemoryRelays(), dict[int, Commit]()
        self._folder = folder

    def commit(self, step: int) -> None:
        """A checkpoint that relays have and the ledger lists."""
        folder = self._folder / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes([step]) * SIZE)
        row = build_manifest(folder, run=RUN, term=1, step=step, parent=ZERO_DIGEST, shard_size=2**20)
        envelope = seal_manifest(TRAINER, row)
        self.relays.manifests[manifest_digest(envelope)] = envelope
        self.commits[step] = Commit(1, step, manifest_digest(envelope), ZERO_DIGEST, False, 10 * step, 0)

    def forget(self, step: int) -> None:
        """Relays keep the newest few."""
        del self.relays.manifests[self.commits[step].manifest]

    def sizes(self, name: str = "judged") -> PublishedSizes:
        return PublishedSizes(relays=self.relays, records=JudgedRows(self._folder / f"{name}.sqlite"))

    @asynccontextmanager
    async def keeping_up(self, sizes: PublishedSizes) -> AsyncIterator[None]:
        task = asyncio.create_task(sizes.keep_up(lambda: self.commits))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_keep_up__learns_what_relays_forget_before_the_tally(world: World) -> None:
    sizes = world.sizes()
    world.commit(1)
    async with world.keeping_up(sizes), asyncio.timeout(5):
        while not sizes.remembers(world.commits[1].manifest):  # noqa: ASYNC110 - a loop without an end
            await asyncio.sleep(0)
    world.forget(1)
    assert await sizes.of([1], world.commits) == {1: SIZE}
    assert await world.sizes().of([1], world.commits) == {1: SIZE}  # on disk: after a restart too


async def test_known__without_what_nobody_tells(world: World) -> None:
    world.commit(1)
    world.commit(2)
    world.forget(1)
    assert await world.sizes().known([1, 2], world.commits) == {2: SIZE}


async def test_shown__what_this_node_alone_remembers_is_left_out(world: World) -> None:
    """Validators that each remember different checkpoints would refuse each other's proposals forever."""
    first, second = world.sizes("first"), world.sizes("second")
    for step in (1, 2, 3):
        world.commit(step)
    await first.known([1], world.commits)
    await second.known([2], world.commits)
    world.forget(1)
    world.forget(2)
    assert await first.known([1, 2, 3], world.commits) == {1: SIZE, 3: SIZE}
    for sizes in (first, second):
        assert await sizes.shown([1, 2, 3], world.commits) == {3: SIZE}
