"""Floods and hostile servers: a relay keeps answering, and a client's memory and time stay bounded."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from dht.encoding import sha256
from dht.errors import TransportError
from dht.records import unix_ms
from roles.relay import RelaySettings, serve
from roles.shardcast.grants import seal_grant
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import RUN, WORKER, Network, make_checkpoint, running_network, wait_until

DATA = b"d" * 50_000


async def start_slow_upload(network: Network, index: int) -> asyncio.StreamWriter:
    """A member's upload that stops after a few bytes."""
    data = DATA + bytes([index])
    info = network.infos[0]
    url = httpx.URL(info.url)
    grant = seal_grant(WORKER, run=RUN, relay=info.node, blob=sha256(data), size=len(data), now_ms=unix_ms())
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = f"PUT /blobs/{sha256(data)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nX-Grant: {grant}\r\n\r\n"
    writer.write(head.encode() + data[:10])
    await writer.drain()
    return writer


async def test_upload__slow_bodies_of_one_node_hold_few_places_and_not_for_long(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        relay = await network.add_relay(settings=RelaySettings(idle=0.5, uploads_of_one=2))
        writers = [await start_slow_upload(network, index) for index in range(2)]
        await wait_until(lambda: relay.shelf.store._reserved > len(DATA))
        with pytest.raises(TransportError, match="too_many_uploads"):
            await network.client().put(DATA)
        await wait_until(lambda: relay.shelf.store._reserved == 0)
        assert relay.counters.refusals["too_slow"] == 2
        assert await network.client().put(DATA)
        for writer in writers:
            writer.close()


async def test_get__endless_body_is_cut_at_the_limit(tmp_path: Path) -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20_000):  # 1.3 GB
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            await asyncio.sleep(0)

    async with running_network(tmp_path, relays=0) as network, serve(endless, host="127.0.0.1", port=0) as url:
        network.infos.append(RelayInfo(WORKER.node.replace(WORKER.node[-1], "3"), url))
        tracemalloc.start()
        started = time.monotonic()
        with pytest.raises(TransportError):
            await network.client().get("0" * 64, limit=200_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert time.monotonic() - started < 5
        assert peak < 20_000_000


@pytest.mark.parametrize("status", [301, 500, 204, 599])
async def test_get__strange_answers_are_transport_errors(status: int, tmp_path: Path) -> None:
    async def strange(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"location", b"http://127.0.0.1:9/"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if status == 204 else b"[" * 50_000})

    async with running_network(tmp_path, relays=0) as network, serve(strange, host="127.0.0.1", port=0) as url:
        network.infos.append(RelayInfo(WORKER.node.replace(WORKER.node[-1], "3"), url))
        with pytest.raises(TransportError):
            await network.client().get("0" * 64, limit=100)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://[::", "http://127.0.0.1:99999", "nonsense"])
async def test_get__strange_urls_are_transport_errors(url: str, tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        network.infos.append(RelayInfo(WORKER.node.replace(WORKER.node[-1], "3"), url))
        with pytest.raises(TransportError):
            await network.client().get("0" * 64, limit=100)


async def test_put_blob__full_disk_is_a_clean_refusal_and_reading_goes_on(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(DATA)
        network.relays[0].shelf.store.max_disk = len(DATA) + 10
        with pytest.raises(TransportError, match="store_full"):
            await network.client().put(DATA + b"more")
        assert await network.client().get(sha256(DATA), limit=len(DATA)) == DATA


async def test_get_blob__many_readers_at_once_wgt_13(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", size=1_000_000)
    data = (source / "model.safetensors").read_bytes()
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(data)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(network.client().get(sha256(data), limit=len(data))) for _ in range(40)]
        assert all(task.result() == data for task in tasks)
