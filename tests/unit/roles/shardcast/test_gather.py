"""Which shard to fetch from which relay: relays that have only a part, claim more than they have, or are gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dht.envelope import Envelope
from dht.errors import TransportError
from dht.identity import NodeKey
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shards import Layout, read_shard
from tests.unit.roles.shardcast.network import (
    TRAINER,
    Network,
    make_checkpoint,
    make_envelope,
    make_manifest,
    running_network,
    wait_until,
)


async def give(network: Network, relay: int, source: Path, *, shards: Callable[[int], bool]) -> Envelope:
    """Send the manifest and the chosen shards to one relay, like an origin that is then killed."""
    link, layout, envelope = network.client(TRAINER).link, Layout(make_manifest(source)), make_envelope(source)
    await link.send_manifest(network.infos[relay], envelope)

    async def content(index: int) -> AsyncIterator[bytes]:
        for block in read_shard(source, layout, index):
            yield block

    for index, digest in enumerate(layout.manifest.shards):
        if shards(index):
            await link.send(network.infos[relay], digest, layout.size(index), partial(content, index))
    return envelope


def boasting(app: ASGIApp) -> ASGIApp:
    """A relay that claims to have every shard, and serves none."""

    async def boast(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/shards"):
            await JSONResponse({"held": "ff"})(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"].startswith("/blobs/"):
            await JSONResponse({"error": "not_held", "detail": ""}, 404)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return boast


def saying(body: bytes) -> Callable[[ASGIApp], ASGIApp]:
    """A relay with this response to the question which shards it has."""

    def wrapped(app: ASGIApp) -> ASGIApp:
        async def say(scope: Scope, receive: Receive, send: Send) -> None:
            await (Response(body) if scope["path"].endswith("/shards") else app)(scope, receive, send)

        return say

    return wrapped


def insisting(asked: list[str]) -> Callable[[ASGIApp], ASGIApp]:
    """A relay that repeatedly claims to have every shard, and serves none; records what it is asked for."""

    def wrapped(app: ASGIApp) -> ASGIApp:
        async def insist() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b'{"held": "ff"}\n'
                await asyncio.sleep(0.01)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"].endswith("/shards"):
                await StreamingResponse(insist())(scope, receive, send)
            elif scope["method"] == "GET" and scope["path"].startswith("/blobs/"):
                asked.append(scope["path"])
                await JSONResponse({"error": "not_held", "detail": ""}, 404)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return answer

    return wrapped


def same(one: Path, other: Path) -> bool:
    return all((one / path.name).read_bytes() == path.read_bytes() for path in other.iterdir())


async def test_fetch_checkpoint__origin_killed_after_each_relay_got_half(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=2) as network:
        await give(network, 0, source, shards=lambda index: index % 2 == 0)
        envelope = await give(network, 1, source, shards=lambda index: index % 2 == 1)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert same(fetched, source)


async def test_run__relays_with_a_half_each_make_each_other_whole(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=2) as network, asyncio.TaskGroup() as group:
        await give(network, 0, source, shards=lambda index: index < 2)
        envelope = await give(network, 1, source, shards=lambda index: index >= 2)
        tasks = network.start(group)
        kept = [relay.shelf.catalogue.find(manifest_digest(envelope)) for relay in network.relays]
        await wait_until(
            lambda: all(k and not relay.shelf.missing(k) for relay, k in zip(network.relays, kept, strict=True))
        )
        for task in tasks:
            task.cancel()


async def test_fetch_checkpoint__all_relays_but_one_dead(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=1) as network:
        envelope = await give(network, 0, source, shards=lambda index: True)
        dead = [RelayInfo(NodeKey(os.urandom(32)).node, f"http://127.0.0.1:{port}") for port in (1, 2, 3, 4, 5)]
        client = network.client(relays=lambda: (*dead, network.infos[0]))
        assert same(await client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into"), source)


async def test_fetch_checkpoint__relay_that_says_it_holds_what_it_lacks(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(boasting)
        envelope = await give(network, 0, source, shards=lambda index: True)
        client = network.client(relays=network.asked_first(1))
        fetched = await client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert same(fetched, source)


async def test_fetch_checkpoint__relay_that_insists_on_what_it_lacks_holds_nobody_up_wgt_12(tmp_path: Path) -> None:
    source, asked = make_checkpoint(tmp_path / "source"), list[str]()
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(insisting(asked))
        envelope = await give(network, 0, source, shards=lambda index: index != 3)
        with pytest.raises(TransportError, match="no relay gave a shard"):
            await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        assert len(asked) < 15  # a shard that it did not give is believed in once for each time it is asked anew
        await give(network, 0, source, shards=lambda index: True)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert same(fetched, source)


async def test_read_holdings__answers_when_another_shard_comes(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        envelope = await give(network, 0, source, shards=lambda index: index == 1)
        link, digest = network.client().link, manifest_digest(envelope)
        assert await link.read_holdings(network.infos[0], digest) == 0b10
        waiting = group.create_task(link.read_holdings(network.infos[0], digest, known=1, wait=5.0))
        await give(network, 0, source, shards=lambda index: index == 4)
        assert await waiting == 0b10010


async def test_follow_holdings__tells_of_each_shard_as_it_comes_and_ends_with_the_last(tmp_path: Path) -> None:
    source, told = make_checkpoint(tmp_path / "source"), list[int]()
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        envelope = await give(network, 0, source, shards=lambda index: index == 1)
        link, digest = network.client().link, manifest_digest(envelope)
        following = group.create_task(link.follow_holdings(network.infos[0], digest, told.append, wait=10.0))
        await wait_until(lambda: told == [0b10])
        await give(network, 0, source, shards=lambda index: index == 4)
        await wait_until(lambda: told == [0b10, 0b10010])
        await give(network, 0, source, shards=lambda index: True)
        await following
    assert told[-1] == 0b11111
    assert told == sorted(told)


async def test_follow_holdings__ends_when_its_time_is_over(tmp_path: Path) -> None:
    source, told = make_checkpoint(tmp_path / "source"), list[int]()
    async with running_network(tmp_path, relays=1) as network:
        envelope = await give(network, 0, source, shards=lambda index: index == 1)
        link, digest = network.client().link, manifest_digest(envelope)
        await link.follow_holdings(network.infos[0], digest, told.append, wait=0.2)
    assert told == [0b10]


async def test_follow_holdings__of_many_lines_at_once_the_last_counts(tmp_path: Path) -> None:
    told = list[int]()
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(saying(b'{"held": "1"}\n' * 20_000 + b'{"held": "3"}'))
        await network.client().link.follow_holdings(network.infos[0], "0" * 64, told.append, wait=1.0)
    assert told[-1] == 3
    assert len(told) < 100


@pytest.mark.parametrize(
    "body", [b"", b"\n" * 2**18, b"1" * 2**21, b"7\n", b'{"held": "x"}\n', b"[" * 60_000 + b"\n", b"\xff\n"]
)
async def test_follow_holdings__what_no_relay_should_say_tells_nothing(body: bytes, tmp_path: Path) -> None:
    told = list[int]()
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(saying(body))
        with pytest.raises(TransportError):
            await network.client().link.follow_holdings(network.infos[0], "0" * 64, told.append, wait=1.0)
    assert not told


async def test_gather__more_relays_without_shards_than_are_asked__the_one_that_has_them_is_found(
    tmp_path: Path,
) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=8) as network:
        for number in range(7):
            await give(network, number, source, shards=lambda index: False)
        envelope = await give(network, 7, source, shards=lambda index: True)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert same(fetched, source)


async def test_gather__relay_that_says_what_it_lacks_is_not_asked_for_it(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        envelope = await give(network, 0, source, shards=lambda index: index == 2)
        relay, into = network.relays[0], tmp_path / "into"
        fetching = group.create_task(network.client().fetch_checkpoint(manifest_digest(envelope), into))
        journal = into / f".partial-{manifest_digest(envelope)}" / "journal"
        await wait_until(lambda: journal.exists() and journal.read_text() == "2\n")
        await give(network, 0, source, shards=lambda index: index != 2)
        assert same(await fetching, source)
    assert relay.counters.refusals["not_held"] == 5  # the origin's own, before it sends each
