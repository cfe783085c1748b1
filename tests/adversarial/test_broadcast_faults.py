"""Machine faults during the broadcast of weights. Covered elsewhere: flipped bits and stalled relays
(`test_shard_bit_flips`), rollback and foreign signatures (`test_manifest_rollback`), clocks (`test_grant_abuse`), a
relay killed during an upload (`test_kill`), an origin killed half-way and dead relays (`test_gather`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dht.envelope import Envelope
from roles.shardcast.manifest import check_manifest, manifest_digest
from roles.shardcast.shards import Layout, read_shard
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    Network,
    make_checkpoint,
    make_envelope,
    running_network,
    wait_until,
)

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def reader(
    network: Network, envelope: Envelope, into: Path, *, largest: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A reader of the first relay, as a process; killed at the end if still alive."""
    info = network.infos[0]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.adversarial.reader_process"),
        *(str(into), manifest_digest(envelope), info.url, info.node, str(largest)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    """Its last line."""
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return out.decode().splitlines()[-1]


def same(one: Path, other: Path) -> bool:
    return all((one / path.name).read_bytes() == path.read_bytes() for path in other.iterdir())


async def hold(network: Network, envelope: Envelope, source: Path, shards: range) -> None:
    """Give the first relay the manifest and some shards."""
    relay, layout = network.relays[0], Layout(check_manifest(envelope, run=RUN, trainers=[TRAINER.node]))
    await relay.shelf.add(relay.shelf.catalogue.check(envelope))
    for index in shards:
        await relay.shelf.store.put(b"".join(read_shard(source, layout, index)))


async def test_reader_killed_at_sixty_percent__goes_on_where_it_was(tmp_path: Path) -> None:
    source, into = make_checkpoint(tmp_path / "source", size=655_360), tmp_path / "into"
    envelope = make_envelope(source)
    journal = into / f".partial-{manifest_digest(envelope)}" / "journal"
    async with running_network(tmp_path, relays=1) as network:
        await hold(network, envelope, source, range(6))
        async with reader(network, envelope, into) as killed:
            await wait_until(lambda: journal.exists() and len(journal.read_text().split()) == 6, seconds=60)
            killed.kill()
            await killed.wait()
        assert not (into / manifest_digest(envelope)).exists()
        await hold(network, envelope, source, range(6, 10))
        served = network.relays[0].counters.bytes_served
        async with reader(network, envelope, into) as again:
            fetched = Path(await said(again))
        assert network.relays[0].counters.bytes_served - served == 4 * 65_536  # what was verified is not fetched again
    assert same(fetched, source)


async def test_disk_of_a_reader_full__says_so_exposes_nothing_and_goes_on_with_room(tmp_path: Path) -> None:
    source, into = make_checkpoint(tmp_path / "source"), tmp_path / "into"
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(envelope, source)
        async with reader(network, envelope, into, largest=100_000) as starved:
            assert (await said(starved)).startswith("full: cannot write a checkpoint")
        assert not (into / manifest_digest(envelope)).exists()
        async with reader(network, envelope, into) as again:
            assert same(Path(await said(again)), source)


def killed_after(app: ASGIApp, *, size: int) -> ASGIApp:
    """A relay that sends this many bytes of blobs, stops in the middle of one, and never answers again."""
    left = size

    async def dying(scope: Scope, receive: Receive, send: Send) -> None:
        async def cut(message: Message) -> None:
            nonlocal left
            if message["type"] == "http.response.body" and scope["path"].startswith("/blobs/"):
                left -= len(message.get("body", b""))
                if left < 0:
                    message = {**message, "body": message["body"][:100], "more_body": True}
            await send(message)
            if left < 0:
                raise ConnectionResetError

        if left >= 0 or scope["method"] == "PUT":
            await app({**scope, "extensions": {}}, receive, cut)

    return dying


async def test_relay_killed_while_it_sends__the_others_give_the_rest(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", size=1_000_000)
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(killed_after, size=300_000))
        assert len(await network.client(TRAINER).put_checkpoint(envelope, source)) == 2
        client, dying = network.client(relays=network.asked_first(1)), network.infos[1].node
        fetched = await client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        assert not client.link.choice.is_banned(dying)  # dead is not dishonest
        assert not client.link.choice.is_well(dying)
    assert same(fetched, source)
