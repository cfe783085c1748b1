"""Checkpoints fetched as soon as relays announce them, before the ledger has their commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from roles.prefetch import Prefetch
from tests.builders import POLICY, MemoryOffer, MemoryRelays, manifest_of
from tests.unit.roles.validator_network import ValidatorNetwork, running


class HeldRelays(MemoryRelays):
    """Relays that have every checkpoint, and serve it when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.given_up: list[str] = []
        self.may_give = asyncio.Event()

    async def fetch_checkpoint(self, digest: str, into: Path) -> Path:
        self.asked.append(digest)
        try:
            await self.may_give.wait()
        except asyncio.CancelledError:
            self.given_up.append(digest)
            raise
        return await super().fetch_checkpoint(digest, into)


@asynccontextmanager
async def prefetching(state: Path, relays: MemoryRelays) -> AsyncIterator[tuple[ValidatorNetwork, Prefetch]]:
    """A network whose ledger has checkpoint 0, and a prefetch over it."""
    async with running(state, validators=()) as network:
        prefetch = Prefetch(trusted=network.trusted, observer=network.eye, relays=relays, folder=state / "prefetch")
        task = asyncio.create_task(prefetch.run(lambda: ""))
        try:
            yield network, prefetch
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_run__offered_checkpoint_is_fetched_before_its_commit(tmp_path: Path) -> None:
    relays = MemoryRelays()
    relays.checkpoints[manifest_of(1)] = POLICY
    async with prefetching(tmp_path, relays) as (network, prefetch):
        relays.offers.put_nowait(MemoryOffer(manifest_of(1), 1))
        await network.until((tmp_path / "prefetch" / manifest_of(1)).is_dir)
        assert network.trusted.committed(1) is None
    assert prefetch.manifest == manifest_of(1)


async def test_run__offer_of_any_other_step_is_left_alone(tmp_path: Path) -> None:
    relays = HeldRelays()
    async with prefetching(tmp_path, relays) as (network, _):
        for step in (0, 2, 1):  # told in this order; only the last one comes next
            relays.offers.put_nowait(MemoryOffer(manifest_of(step), step))
        await network.until(lambda: bool(relays.asked))
    assert relays.asked == [manifest_of(1)]


async def test_fetch__given_up_for_the_commit_of_another(tmp_path: Path) -> None:
    relays = HeldRelays()
    async with prefetching(tmp_path, relays) as (network, _):
        relays.offers.put_nowait(MemoryOffer("ee" * 32, 1))
        await network.until(lambda: bool(relays.asked))
        await network.commit()
        await network.until(lambda: bool(relays.given_up))
    assert relays.given_up[0] == "ee" * 32
    assert not (tmp_path / "prefetch").exists()


async def test_fetch__goes_on_beyond_its_own_commit(tmp_path: Path) -> None:
    relays = HeldRelays()
    relays.checkpoints[manifest_of(1)] = POLICY
    async with prefetching(tmp_path, relays) as (network, _):
        relays.offers.put_nowait(MemoryOffer(manifest_of(1), 1))
        await network.until(lambda: bool(relays.asked))
        await network.commit()
        await network.until(lambda: network.trusted.committed(1) is not None)
        relays.may_give.set()
        await network.until((tmp_path / "prefetch" / manifest_of(1)).is_dir)
    assert relays.given_up == []
