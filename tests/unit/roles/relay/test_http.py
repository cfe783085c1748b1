"""The relay's HTTP interface, over real connections."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from dht.encoding import sha256
from roles.relay import PortTaken, Relay, RelaySettings, serve
from roles.relay.connection_slots import ConnectionSlots, party_of
from roles.relay.connections import ConnectionLimits
from roles.shardcast.manifest import manifest_digest
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    Network,
    make_checkpoint,
    make_envelope,
    running_network,
)

DATA = bytes(range(256)) * 4


async def fetch(network: Network, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    return await network.http.request(method, network.infos[0].url + path, headers=headers)


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [("bytes=0-9", 0, 10), ("bytes=1000-", 1000, 1024), ("bytes=-24", 1000, 1024), ("bytes=1000-9999", 1000, 1024)],
)
async def test_get_blob__range(header: str, start: int, end: int, tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(DATA)
        reply = await fetch(network, f"/blobs/{sha256(DATA)}", Range=header)
        assert (reply.status_code, reply.content) == (206, DATA[start:end])
        assert reply.headers["content-range"] == f"bytes {start}-{end - 1}/1024"


async def test_get_blob__range_past_the_end_and_several(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(DATA)
        path = f"/blobs/{sha256(DATA)}"
        assert (await fetch(network, path, Range="bytes=1024-")).status_code == 416
        assert (await fetch(network, path, Range="bytes=9-3")).json()["error"] == "range_not_satisfiable"
        assert (await fetch(network, path, Range="bytes=0-1,4-5")).content == DATA


async def test_head_blob__says_the_length_only(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(DATA)
        reply = await fetch(network, f"/blobs/{sha256(DATA)}", "HEAD")
        assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, "1024", b"")
        assert (await fetch(network, f"/blobs/{'0' * 64}", "HEAD")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"/blobs/{'0' * 64}", 404, "not_held"),
        ("GET", f"/manifests/{'0' * 64}", 404, "not_held"),
        ("GET", "/blobs/..%2f..%2fetc%2fpasswd", 404, "unknown_path"),
        ("GET", f"/blobs/{'A' * 64}", 404, "not_a_digest"),
        ("GET", "/nothing", 404, "unknown_path"),
        ("DELETE", f"/blobs/{'0' * 64}", 405, "method_not_allowed"),
        ("PUT", f"/blobs/{'0' * 64}", 401, "grant_missing"),
        ("POST", "/register", 403, "not_a_sponsor"),
        ("GET", "/spec", 404, "not_held"),
    ],
)
async def test_refusals__are_json(method: str, path: str, status: int, code: str, tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        headers = {"Content-Length": "0"} if method in ("PUT", "POST") else {}
        reply = await network.http.request(method, network.infos[0].url + path, headers=headers)
        assert (reply.status_code, reply.json()["error"]) == (status, code)
        assert reply.json()["detail"]


async def test_get_spec__also_under_the_runs_id(tmp_path: Path) -> None:
    spec = b'{"name":"a run"}'
    async with running_network(tmp_path, relays=0) as network:
        relay = await network.add_relay(run=sha256(spec), spec=spec)
        await relay.prepare()
        for path in ("/spec", f"/blobs/{sha256(spec)}"):
            assert (await fetch(network, path)).content == spec


async def test_status_and_metrics__count(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(make_envelope(folder), folder)
        await network.client().fetch_checkpoint(manifest_digest(make_envelope(folder)), tmp_path / "into")
        status = (await fetch(network, "/status")).json()
        assert (status["bytes_received"], status["bytes_served"], status["disk_used"]) == (300_000,) * 3
        listed = (await fetch(network, "/manifests")).json()["manifests"]
        assert listed == status["checkpoints"]
        assert listed == [
            {"manifest": manifest_digest(make_envelope(folder)), "term": 1, "step": 1, "shards": 5, "held": 5}
        ]
        metrics = (await fetch(network, "/metrics")).text
        assert "intellect_relay_bytes_served_total 300000.0\n" in metrics
        assert 'intellect_relay_requests_total{status="201"} 6.0\n' in metrics


async def test_serve__port_taken_is_said_boot_12(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        port = int(network.infos[0].url.rpartition(":")[2])
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}.*another program"):
            async with serve(network.relays[0].app, host="127.0.0.1", port=port):
                pass


async def test_serve__stops_within_two_seconds_with_requests_under_way(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    relay = make_relay(tmp_path)
    await relay.shelf.add(relay.shelf.catalogue.check(make_envelope(folder)))
    shard = relay.shelf.missing(next(iter(relay.shelf.catalogue)))[0]
    digest = next(iter(relay.shelf.catalogue)).manifest.shards[shard]
    async with serve(relay.app, host="127.0.0.1", port=0) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(f"GET /blobs/{digest} HTTP/1.1\r\nHost: x\r\nX-Wait: 10\r\n\r\n".encode())
        await writer.drain()
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        started = time.monotonic()
    assert time.monotonic() - started < 2.0
    for one in (writer, idle_writer):
        one.close()
    assert await idle_reader.read() == b""
    await reader.read()


def make_relay(root: Path, **settings: float) -> Relay:
    return Relay(
        TRAINER,
        root=root / "relay",
        run=RUN,
        trainers=[TRAINER.node],
        is_member=lambda node: False,
        settings=RelaySettings(**settings),  # type: ignore[arg-type]
    )


async def test_get_blob__waits_for_a_listed_shard(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", size=5000)
    async with running_network(tmp_path, relays=1) as network:
        trainer = network.client(TRAINER)
        await trainer.link.send_manifest(network.infos[0], make_envelope(folder))
        shard = next(iter(network.relays[0].shelf.catalogue)).manifest.shards[0]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(fetch(network, f"/blobs/{shard}", **{"X-Wait": "5"}))
            group.create_task(trainer.put_checkpoint(make_envelope(folder), folder))
        assert sha256(waiting.result().content) == shard


async def slow_connection(url: str, sent: bytes) -> bytes:
    """The response on a connection that sends this and then nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(sent)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /stat", b"GET /status HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_serve__slow_head_is_cut_off(sent: bytes, tmp_path: Path) -> None:
    async with serve(make_relay(tmp_path).app, host="127.0.0.1", port=0, limits=ConnectionLimits(head=0.2)) as url:
        assert await slow_connection(url, sent) == b""


async def test_serve__slow_head_of_the_second_request_is_cut_off(tmp_path: Path) -> None:
    async with serve(make_relay(tmp_path).app, host="127.0.0.1", port=0, limits=ConnectionLimits(head=0.2)) as url:
        answer = await slow_connection(url, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\nGET /st")
        assert answer.startswith(b"HTTP/1.1 200")


async def test_serve__huge_head_is_refused(tmp_path: Path) -> None:
    async with serve(make_relay(tmp_path).app, host="127.0.0.1", port=0) as url:
        answer = await slow_connection(url, b"GET / HTTP/1.1\r\nX-Big: " + b"x" * 100_000)
        assert answer.startswith(b"HTTP/1.1 400") or answer == b""


async def test_serve__reader_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    relay = make_relay(tmp_path)
    digest = await relay.shelf.store.put(b"x" * 30_000_000)
    async with serve(relay.app, host="127.0.0.1", port=0, limits=ConnectionLimits(reader=0.3)) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1024)
        writer.write(f"GET /blobs/{digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await asyncio.sleep(0.8)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(30_000_000)
        writer.close()


async def test_serve__readers_that_do_not_read_keep_no_other_from_reading(tmp_path: Path) -> None:
    relay = make_relay(tmp_path)
    data = bytes(range(256)) * 80_000
    digest = await relay.shelf.store.put(data)
    ask = f"GET /blobs/{digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with serve(relay.app, host="127.0.0.1", port=0) as url:
        idle = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1024) for _ in range(40)]
        for _, writer in idle:
            writer.write(ask)
        async with httpx.AsyncClient() as http:
            reply = await http.get(f"{url}/blobs/{digest}")
        assert reply.content == data
        head = await idle[-1][0].readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await idle[-1][0].readexactly(len(data)) == data  # who waited goes on
        for _, writer in idle:
            writer.close()


async def test_serve__connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    limits = ConnectionLimits(per_address=2)
    async with serve(make_relay(tmp_path).app, host="127.0.0.1", port=0, limits=limits) as url:
        port = int(url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await slow_connection(url, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        for _, writer in held:
            writer.close()


async def test_serve__a_crowd_of_silent_connections_keeps_nobody_out(tmp_path: Path) -> None:
    async with serve(make_relay(tmp_path).app, host="127.0.0.1", port=0, limits=ConnectionLimits(total=8)) as url:
        port = int(url.rpartition(":")[2])
        crowd = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{1 + number % 4}", 0))
            for number in range(20)
        ]
        assert (await slow_connection(url, b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
        for _, writer in crowd:
            writer.close()


def test_doors__the_eldest_silent_one_of_the_busiest_makes_room() -> None:
    slots, closed = ConnectionSlots(most=3, per_address=9), list[int]()
    for number, address in enumerate(["crowd", "crowd", "other"]):
        assert slots.take(address, number, partial(closed.append, number))
        slots.mark_idle(address, number, partial(closed.append, number))
    slots.mark_busy("crowd", 0)
    slots.mark_idle("crowd", 0, partial(closed.append, 0))  # asked once, so the younger now
    assert slots.take("new", 3, partial(closed.append, 3))
    assert closed == [1]


def test_doors__nobody_at_work_is_put_out_for_an_equal() -> None:
    slots, closed = ConnectionSlots(most=1, per_address=9), list[int]()
    assert slots.take("one", 1, partial(closed.append, 1))
    assert not slots.take("two", 2, partial(closed.append, 2))
    slots.release("two", 2)
    slots.release("one", 1)
    assert slots.take("three", 3, partial(closed.append, 3))
    assert not closed


def test_doors__a_crowd_at_work_makes_room_for_who_has_much_less() -> None:
    slots, closed = ConnectionSlots(most=6, per_address=9), list[int]()
    for number, address in enumerate(["other", *["crowd"] * 5]):
        assert slots.take(address, number, partial(closed.append, number))
    assert slots.take("new", 6, partial(closed.append, 6))
    assert closed == [1]
    slots.release("crowd", 1)
    assert not slots.take("crowd", 7, partial(closed.append, 7))
    slots.release("crowd", 7)
    assert not slots.take("another", 8, partial(closed.append, 8))  # the crowd holds four now, which is no crowd
    assert closed == [1]


@pytest.mark.parametrize(
    ("host", "party"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_party_of__who_has_an_ipv6_network_is_one(host: str, party: str) -> None:
    assert party_of(host) == party


async def test_guard__requests_of_one_address_are_bounded(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(settings=RelaySettings(rate=0.001, burst=3))
        codes = [(await fetch(network, "/status")).status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]


async def test_outermost__a_fault_of_ours_is_a_500_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_network(tmp_path, relays=1) as network:
        network.relays[0].shelf.store.used = None  # type: ignore[assignment]
        del network.relays[0].counters.bytes_served
        reply = await fetch(network, "/status")
        assert (reply.status_code, reply.json()["error"]) == (500, "internal")
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_get_blob__in_blocks_where_the_server_cannot_send_files(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(DATA)
        transport = httpx.ASGITransport(network.relays[0].app)
        async with httpx.AsyncClient(transport=transport, base_url="http://relay") as http:
            assert (await http.get(f"/blobs/{sha256(DATA)}")).content == DATA
            assert (await http.get(f"/blobs/{sha256(DATA)}", headers={"Range": "bytes=5-7"})).content == DATA[5:8]
        assert network.relays[0].counters.bytes_served == len(DATA) + 3


async def test_get_blob__larger_than_a_step_and_on_one_connection(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    async with running_network(tmp_path, relays=1) as network:
        await network.client().put(data)
        for _ in range(2):
            assert (await fetch(network, f"/blobs/{sha256(data)}")).content == data
        assert network.relays[0].counters.bytes_served == 2 * len(data)


async def test_list_shards__unknown_manifest_and_no_digest(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        assert (await fetch(network, f"/manifests/{'0' * 64}/shards")).json()["error"] == "not_held"
        assert (await fetch(network, "/manifests/x/shards")).json()["error"] == "not_a_digest"
