"""The trainer's side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from dht.errors import PeerError, TransportError
from roles.shardcast.link import RelayLink
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.origin import OFFER_SECONDS, Origin
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    WORKER,
    Network,
    dying_after,
    make_checkpoint,
    make_envelope,
    running_network,
    stalling,
    wait_until,
)


def make_origin(network: Network) -> Origin:
    return Origin(network.client(TRAINER).link, trainers=[TRAINER.node], patience=0.5)


def silent(app: ASGIApp) -> ASGIApp:
    """A relay that takes connections and never answers, as one behind a partition."""

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        await asyncio.Event().wait()

    return waiting


def held(network: Network, folder: Path) -> list[int]:
    """Shards of the checkpoint on each relay."""
    digest = manifest_digest(make_envelope(folder))
    kept = [relay.shelf.catalogue.find(digest) for relay in network.relays]
    return [relay.shelf.held(one) if one else 0 for relay, one in zip(network.relays, kept, strict=True)]


async def test_publish__two_copies_of_three(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=3) as network:
        holders = await make_origin(network).publish(make_envelope(folder), folder)
        assert sorted(held(network, folder)) == [0, 5, 5]
        assert len(set(holders)) == 2


async def test_publish__shards_already_there_are_not_sent_again(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path) as network:
        await make_origin(network).publish(make_envelope(folder), folder)
        received = [relay.counters.bytes_received for relay in network.relays]
        await make_origin(network).publish(make_envelope(folder), folder)
        assert [relay.counters.bytes_received for relay in network.relays] == received == [300_000, 300_000]


async def test_publish__never_to_none(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=0) as network:
        with pytest.raises(TransportError, match="no relay took the checkpoint of step 1"):
            await make_origin(network).publish(make_envelope(folder), folder, deadline=0.1)


async def test_publish__waits_for_the_first_relay__wgt_14(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=0) as network, asyncio.TaskGroup() as group:
        task = group.create_task(make_origin(network).publish(make_envelope(folder), folder, deadline=20))
        relay = await network.add_relay()
        assert await task == (relay.node,)


async def test_publish__slow_second_copy_not_waited_for_and_made_later(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(stalling, after=0, method="PUT"))
        origin = make_origin(network)
        async with asyncio.TaskGroup() as group:
            holders = await origin.publish(make_envelope(folder), folder)
            assert holders == (network.infos[0].node,)
            background = group.create_task(origin.run())
            await network.add_relay()
            await wait_until(lambda: held(network, folder)[2] == 5)
            background.cancel()


async def test_publish__a_relay_that_is_cut_off_is_not_waited_for_long(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(silent)
        link = RelayLink(TRAINER, run=RUN, relays=lambda: tuple(network.infos), http=network.http)
        began = time.monotonic()
        holders = await Origin(link, trainers=[TRAINER.node]).publish(make_envelope(folder), folder)
        assert holders == (network.relays[0].node,)
        assert time.monotonic() - began < OFFER_SECONDS / 2


async def test_publish__relay_that_dies_mid_transfer_is_replaced(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        dying = await network.add_relay(partial(dying_after, shards=2))
        origin = make_origin(network)
        assert await origin.publish(make_envelope(folder), folder) == (network.relays[0].node,)
        assert held(network, folder) == [5, 2]
        network.infos.remove(next(info for info in network.infos if info.node == dying.node))
        await network.add_relay()
        async with asyncio.TaskGroup() as group:
            copying = group.create_task(origin.run())
            await wait_until(lambda: held(network, folder) == [5, 2, 5])
            copying.cancel()


async def test_run__a_copy_still_owed_is_dropped_for_a_newer_checkpoint(tmp_path: Path) -> None:
    older, newer = make_checkpoint(tmp_path / "older"), make_checkpoint(tmp_path / "newer", seed=1)
    async with running_network(tmp_path, relays=1) as network:
        origin = make_origin(network)
        await origin.publish(make_envelope(older), older)
        await origin.publish(make_envelope(newer, step=2), newer)
        late = await network.add_relay()
        async with asyncio.TaskGroup() as group:
            copying = group.create_task(origin.run())
            await wait_until(lambda: late.counters.bytes_received >= 300_000)
            copying.cancel()
        assert [kept.manifest.step for kept in late.shelf.catalogue] == [2]


async def test_publish__manifest_of_another_signer_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path) as network:
        with pytest.raises(PeerError):
            await make_origin(network).publish(make_envelope(folder, key=WORKER), folder)


async def test_publish__directory_changed_since_is_refused_by_relays(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    (folder / "config.json").write_bytes(b"?" * 100_000)
    async with running_network(tmp_path) as network:
        with contextlib.suppress(TransportError):
            assert await make_origin(network).publish(envelope, folder, deadline=0.1) == ()
        assert 5 not in held(network, folder)


async def test_publish__each_shard_leaves_the_trainer_once_and_the_relays_share(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "c", size=1_000_000)
    async with running_network(tmp_path) as network, asyncio.TaskGroup() as group:
        tasks = network.start(group)
        origin = Origin(network.client(TRAINER, fan_out=10.0).link, trainers=[TRAINER.node])
        assert len(await origin.publish(make_envelope(source), source)) == 2
        for task in tasks:
            task.cancel()
    assert sum(relay.counters.bytes_received for relay in network.relays) == 1_000_000
    assert sum(relay.counters.bytes_pulled for relay in network.relays) == 1_000_000
