"""Blobs and checkpoints through real relays, some of them bad."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from dht.encoding import sha256
from dht.errors import PeerError, TransportError
from dht.identity import NodeKey
from roles.shardcast.assembly import Assembly
from roles.shardcast.link import RelayLink
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.replies import RelayInfo
from roles.shardcast.server_choice import ServerChoice
from roles.shardcast.shards import read_shard
from roles.shardcast.sinks import MemorySink
from tests.unit.roles.shardcast.network import (
    TRAINER,
    Network,
    dripping,
    make_checkpoint,
    make_envelope,
    make_manifest,
    running_network,
    spoiled,
    stalling,
    swallowing,
    wait_until,
)

DATA = b"rollouts" * 1000
DEAD = RelayInfo(TRAINER.node.replace(TRAINER.node[-1], "2"), "http://127.0.0.1:9")


def flip(block: bytes) -> bytes:
    return bytes([block[0] ^ 1]) + block[1:]


async def test_put__held_by_two_relays_and_read_back(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=3) as network:
        holders = await network.client().put(DATA)
        assert len(set(holders)) == 2
        assert await network.client().get(sha256(DATA), limit=10_000, relays=holders) == DATA


async def test_put__upload_tells_of_the_line(tmp_path: Path) -> None:
    async with running_network(tmp_path) as network:
        client = network.client()
        await client.put(DATA)
        assert client.link.upload_mbit is None  # too small to tell
        await client.put(bytes(300_000))
        assert client.link.upload_mbit is not None
        assert 0 < client.link.upload_mbit < 1e6


async def test_put__one_dead_relay_leaves_one_copy(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        client = network.client(relays=lambda: (DEAD, *network.infos))
        assert await client.put(DATA) == (network.infos[0].node,)


async def test_put__stalled_relay_replaced_by_the_next(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=2) as network:
        await network.add_relay(partial(stalling, after=0, method="PUT"))
        client = network.client()
        client.link.choice.succeeded(network.infos[2].node, size=10**15, seconds=1.0)  # tried first
        assert set(await client.put(DATA)) == {info.node for info in network.infos[:2]}


class Steady(random.Random):
    """Replaces chance: the draw follows the order of the weights."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1.0


async def test_put__relays_that_keep_nothing_are_found_out_and_others_get_the_blob(tmp_path: Path) -> None:
    """Two free relays that answer fastest, and are tried first, swallow every upload, so that the
    worker would never be credited."""
    async with running_network(tmp_path, relays=2) as network, asyncio.TaskGroup() as group:
        liars = [await network.add_relay(swallowing), await network.add_relay(swallowing)]
        client = network.client()
        client.link.choice = ServerChoice(draw=Steady())
        for relay in network.relays:
            client.link.choice.succeeded(relay.node, size=10**15 if relay in liars else 10**6, seconds=1.0)
        assert set(await client.put(DATA)) == {liar.node for liar in liars}
        client.keeper.after, client.keeper.tick = (0.0,), 0.01
        running = group.create_task(client.run())
        await wait_until(lambda: all(sha256(DATA) in relay.shelf.store for relay in network.relays[:2]))
        assert all(client.link.choice.is_banned(liar.node) for liar in liars)
        assert not any(client.link.choice.is_banned(relay.node) for relay in network.relays[:2])
        running.cancel()


async def test_order__free_relays_after_those_that_cost_and_the_doubted_last() -> None:
    infos = [RelayInfo(NodeKey(bytes([n]) * 32).node, f"http://relay{n}", is_free=n % 2 == 1) for n in range(1, 9)]
    async with httpx.AsyncClient() as http:
        link = RelayLink(NodeKey.generate(), run="ab" * 32, relays=lambda: infos, http=http)
        doubted = {infos[0].node, infos[1].node}
        order = [(info.node in doubted, info.is_free) for info in link.order(last=doubted)]
        assert order == [(False, False)] * 3 + [(False, True)] * 3 + [(True, False), (True, True)]
        assert link.order([infos[0].node], last=doubted)[0] == infos[0]  # a hint says that it has the blob


async def test_put__relays_that_keep_it_are_asked_and_nothing_is_sent_again(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=3) as network, asyncio.TaskGroup() as group:
        client = network.client()
        holders = await client.put(DATA)
        client.keeper.after, client.keeper.tick = (0.0, 0.1), 0.01
        before = sum(relay.counters.requests[206] for relay in network.relays)
        running = group.create_task(client.run())
        await wait_until(lambda: sum(relay.counters.requests[206] for relay in network.relays) == before + 4)
        assert [relay.node for relay in network.relays if sha256(DATA) in relay.shelf.store] == [
            relay.node for relay in network.relays if relay.node in holders
        ]
        running.cancel()


async def test_put__relay_that_gives_other_bytes_later_is_out(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        liar = await network.add_relay(partial(spoiled, spoil=flip))
        client = network.client()
        assert liar.node in await client.put(DATA)
        client.keeper.after, client.keeper.tick = (0.0,), 0.01
        running = group.create_task(client.run())
        await wait_until(lambda: client.link.choice.is_banned(liar.node))
        assert not client.link.choice.is_banned(network.relays[0].node)
        running.cancel()


async def test_put__copy_at_a_relay_that_gives_other_bytes_is_replaced(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        await network.add_relay(partial(spoiled, spoil=flip))
        client = network.client()
        assert len(await client.put(DATA)) == 2
        another = await network.add_relay()
        client.keeper.after, client.keeper.tick = (0.0,), 0.01
        running = group.create_task(client.run())
        await wait_until(lambda: sha256(DATA) in another.shelf.store)
        running.cancel()


async def test_put__no_relay_is_an_error(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        with pytest.raises(TransportError, match="no relay is known"):
            await network.client().put(DATA)
        with pytest.raises(TransportError, match="no relay took the blob"):
            await network.client(relays=lambda: (DEAD,)).put(DATA)


async def test_get__wrong_bytes_drop_the_relay_and_the_next_is_tried(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(spoiled, spoil=flip))
        await network.client().put(DATA)
        client, liar = network.client(), network.infos[1].node
        assert await client.get(sha256(DATA), limit=10_000, relays=[liar]) == DATA
        assert client.link.choice.is_banned(liar)
        assert not client.link.choice.is_banned(network.infos[0].node)


@pytest.mark.parametrize(("base", "is_blamed"), [(0.05, True), (5.0, False)])
async def test_get__relay_that_outlasts_the_callers_patience_loses_traffic__wgt_10(
    tmp_path: Path, base: float, is_blamed: bool
) -> None:
    """A relay that trickles stays within every timeout of a transfer. A caller that gives up
    must not come back to it first."""
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(partial(stalling, after=10))
        await network.client().put(DATA)
        client, slow = network.client(), network.infos[0].node
        client.link.limits = replace(client.link.limits, base=base, slowest=1.0)
        before = client.link.choice.score(slow).success
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.get(sha256(DATA), limit=10_000)
        assert (client.link.choice.score(slow).success < before) is is_blamed


async def test_get__blob_over_the_limit_blames_no_relay(tmp_path: Path) -> None:
    async with running_network(tmp_path) as network:
        await network.client().put(DATA)
        client = network.client()
        with pytest.raises(TransportError, match="more than 100 bytes"):
            await client.get(sha256(DATA), limit=100)
        assert all(client.link.choice.score(info.node).success == 1.0 for info in network.infos)


async def test_get__stalled_relay_costs_its_time_out_only__nat_09(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(stalling, after=100))
        await network.client().put(DATA)
        stalled = network.infos[1].node
        async with asyncio.timeout(6):
            assert await network.client().get(sha256(DATA), limit=10_000, relays=[stalled]) == DATA


@pytest.mark.parametrize("bulk", [1, 2**20])  # by a lane, and by the HTTP library
async def test_receive__relay_that_drips_has_its_time_and_no_more(tmp_path: Path, bulk: int) -> None:
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(dripping)
        await network.client().put(DATA)
        link, slow = network.client().link, network.infos[0]
        link.limits = replace(link.limits, base=0.2, slowest=1e6, bulk=bulk)
        async with asyncio.timeout(5):
            with pytest.raises(TransportError):
                await link.receive(slow, sha256(DATA), limit=10_000, sink=MemorySink(sha256(DATA)))
        assert link.choice.score(slow.node).success < 1.0


async def test_get__nobody_has_it(tmp_path: Path) -> None:
    async with running_network(tmp_path) as network:
        with pytest.raises(TransportError, match="no relay has blob"):
            await network.client().get("0" * 64, limit=10)


async def test_get__proxy_variables_are_not_read_boot_06(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    async with running_network(tmp_path) as network:
        await network.client().put(DATA)
        assert await network.client().get(sha256(DATA), limit=10_000) == DATA


async def test_fetch_checkpoint__bytes_equal_and_second_time_from_disk(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope = make_envelope(source)
    async with running_network(tmp_path) as network:
        assert len(await network.client(TRAINER).put_checkpoint(envelope, source)) == 2
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        offline = network.client(relays=tuple)
        assert await offline.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into") == fetched
    for path in source.iterdir():
        assert (fetched / path.name).read_bytes() == path.read_bytes()


async def test_fetch_checkpoint__damaged_one_fetched_again_wgt_24(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    digest = manifest_digest(make_envelope(source))
    async with running_network(tmp_path) as network:
        await network.client(TRAINER).put_checkpoint(make_envelope(source), source)
        fetched = await network.client().fetch_checkpoint(digest, tmp_path / "into")
        (fetched / "config.json").write_bytes(b"?" * 100_000)
        await network.client().fetch_checkpoint(digest, tmp_path / "into")
    assert (fetched / "config.json").read_bytes() == (source / "config.json").read_bytes()


async def test_fetch_checkpoint__two_at_once_share_one_transfer(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    digest = manifest_digest(make_envelope(source))
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(make_envelope(source), source)
        one, other = network.client(), network.client()  # as two processes would: each with its own lock
        tasks = [client.fetch_checkpoint(digest, tmp_path / "into") for client in (one, one, other)]
        assert len(set(await asyncio.gather(*tasks))) == 1
        assert network.relays[0].counters.bytes_served == 300_000


async def test_fetch_checkpoint__resumes_with_the_missing_shards_only_wgt_08(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope, manifest = make_envelope(source), make_manifest(source)
    killed = Assembly(tmp_path / "into", envelope, manifest)
    assert killed.open()
    for index in (0, 1, 2):
        async with killed.writer(index) as writer:
            for block in read_shard(source, killed.layout, index):
                writer.take(block)
            writer.commit()
    killed.close()
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(envelope, source)
        await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        assert network.relays[0].counters.bytes_served == 300_000 - 3 * 65_536


async def test_fetch_checkpoint__begins_before_the_last_shard_is_published(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope, manifest = make_envelope(source), make_manifest(source)
    async with running_network(tmp_path, relays=1) as network:
        trainer, relay = network.client(TRAINER).link, network.infos[0]
        await trainer.send_manifest(relay, envelope)
        client = network.client()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into"))
            layout = Assembly(tmp_path, envelope, manifest).layout
            for index, shard in enumerate(manifest.shards):
                data = b"".join(read_shard(source, layout, index))
                await trainer.send(relay, shard, len(data), partial(once, data))
                await wait_until(partial(has_served, network, 65_536 * index))
                assert task.done() is False or index == len(manifest.shards) - 1
        assert task.result().exists()


def has_served(network: Network, count: int) -> bool:
    return network.relays[0].counters.bytes_served >= count


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_fetch_checkpoint__no_relay_gives_shards_ends_after_the_stall_wgt_12(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).link.send_manifest(network.infos[0], envelope)
        with pytest.raises(TransportError, match="no relay gave a shard"):
            await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert not (tmp_path / "into" / manifest_digest(envelope)).exists()


async def test_fetch_manifest__another_manifest_under_this_name_is_refused(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(spoiled, spoil=flip))
        await network.client(TRAINER).put_checkpoint(make_envelope(source), source)
        client, liar = network.client(relays=network.asked_first(1)), network.infos[1]
        with pytest.raises(PeerError):
            await client.link.receive_manifest(liar, manifest_digest(make_envelope(source)))
        assert client.link.choice.is_banned(liar.node)
        assert await client.fetch_manifest(manifest_digest(make_envelope(source)))
