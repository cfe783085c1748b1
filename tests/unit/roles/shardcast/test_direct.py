"""Channels: a key publishes, and whoever knows its id can read; no node, no ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dht.errors import Malformed, TransportError
from roles.shardcast import NodeKey, channel_of, open_channel
from tests.unit.roles.shardcast.line import is_same, make_line, pulling
from tests.unit.roles.shardcast.network import Network, make_checkpoint, running_network, wait_until

PUBLISHER = NodeKey(b"p" * 32)


async def add_relay(network: Network) -> str:
    """A relay of the publisher's channel; its URL."""
    await network.add_relay(run=channel_of(PUBLISHER.node), trainers=[PUBLISHER.node])
    return network.infos[-1].url


async def publish(folder: Path, *urls: str, step: int | None = None) -> str:
    async with open_channel(PUBLISHER.node, urls, key=PUBLISHER) as channel:
        return (await channel.publish(folder, step=step)).manifest


async def fetch(into: Path, *urls: str) -> Path:
    async with open_channel(PUBLISHER.node, urls) as channel:
        return await channel.fetch(into)


async def test_fetch__newest_of_what_was_published_with_progress(tmp_path: Path) -> None:
    said = list[tuple[int, int]]()
    async with running_network(tmp_path, relays=0) as network:
        url = await add_relay(network)
        await publish(make_checkpoint(tmp_path / "old", seed=1), url)
        newest = await publish(make_checkpoint(tmp_path / "new", seed=2), url)
        async with open_channel(PUBLISHER.node, [url]) as channel:
            path = await channel.fetch(tmp_path / "into", progress=lambda here, total: said.append((here, total)))
    assert path.name == newest
    assert (path / "config.json").read_bytes() == (tmp_path / "new" / "config.json").read_bytes()
    assert said[0] == (0, 300_000)
    assert max(said) == (300_000, 300_000)


async def test_fetch__relays_that_went_back_to_an_older_step_give_nothing_new(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        first, second = await add_relay(network), await add_relay(network)
        await publish(make_checkpoint(tmp_path / "new", seed=2), first, step=7)
        await publish(make_checkpoint(tmp_path / "old", seed=1), second, step=3)
        held = await fetch(tmp_path / "into", first)
        assert await fetch(tmp_path / "into", second) == held


async def test_publish__stranger_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        url = await add_relay(network)
        async with open_channel(PUBLISHER.node, [url], key=NodeKey(b"x" * 32)) as channel:
            with pytest.raises(Exception, match="not signed by a trainer"):
                await channel.publish(make_checkpoint(tmp_path / "c"))
        assert len(network.relays[0].shelf.catalogue) == 0


async def test_open_channel__relay_of_another_publisher_and_dead_ones_are_named(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        with pytest.raises(Malformed, match="another publisher"):
            await fetch(tmp_path / "into", network.infos[0].url)
        with pytest.raises(TransportError, match="no relay answers at"):
            await fetch(tmp_path / "into", "http://127.0.0.1:1")


async def test_follow__told_of_each_as_it_comes(tmp_path: Path) -> None:
    fetched = list[Path]()
    async with running_network(tmp_path, relays=0) as network, asyncio.TaskGroup() as group:
        url = await add_relay(network)
        async with open_channel(PUBLISHER.node, [url]) as channel:
            following = group.create_task(channel.follow(tmp_path / "into", fetched.append))
            first = await publish(make_checkpoint(tmp_path / "a", seed=1), url)
            await wait_until(lambda: [path.name for path in fetched] == [first])
            second = await publish(make_checkpoint(tmp_path / "b", seed=2), url)
            await wait_until(lambda: [path.name for path in fetched] == [first, second])
            following.cancel()


@pytest.mark.parametrize(("has_base", "near"), [(True, True), (True, False), (False, True)])
async def test_publish__with_a_base_what_changed_is_sent(tmp_path: Path, has_base: bool, near: bool) -> None:
    line = make_line(tmp_path / "line", steps=2)
    newer = line.folders[1] if near else make_checkpoint(tmp_path / "far", size=400_000)
    async with running_network(tmp_path, relays=0) as network:
        url = await add_relay(network)
        async with pulling(network), open_channel(PUBLISHER.node, [url], key=PUBLISHER) as channel:
            if has_base:
                await channel.publish(line.folders[0])
                held = await channel.fetch(tmp_path / "into")
            received = network.relays[0].counters.bytes_received
            published = await channel.publish(newer, base=line.folders[0])
            sent = network.relays[0].counters.bytes_received - received
            fetched = await channel.fetch(tmp_path / "into")
            assert fetched.name == published.manifest
            assert is_same(fetched, newer)
    assert (sent < 10_000) == (has_base and near)
    assert not has_base or held.exists()
