"""The chaos benchmark's own parts: its verdict is only as good as its faults."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.lines import Line, Partition, Weather
from benchmarks.chaos.processes import Owners
from benchmarks.chaos.schedule import GAP, make_schedule

ROLES = {"trainer": ["trainer"], "worker": ["worker-1"], "validator": ["validator-1"], "relay": ["relay-1"]}
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_make_schedule__follows_from_the_seed() -> None:
    one, same, other = (make_schedule(seed, seconds=600, roles=ROLES) for seed in (1, 1, 2))
    assert one == same != other


def test_make_schedule__every_fault_once_before_any_twice_and_never_closer_than_the_gap() -> None:
    faults = make_schedule(3, seconds=600, roles=ROLES)
    first = {(fault.kind, fault.victims[0] if fault.kind == "kill" else "") for fault in faults[:9]}
    assert len(first) == 9
    assert all(later.at - fault.at >= GAP[0] for fault, later in itertools.pairwise(faults))


@asynccontextmanager
async def a_line(
    weather: Weather, owner: str | None = None, **partition: Any
) -> AsyncIterator[tuple[Line, list[bytes]]]:
    """A line to a server that answers each request, and what has reached it."""
    seen = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.append(data)
            writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    parted = Partition(owners=lambda: Owners({}), **partition)
    line = Line(
        "relay-1",
        server.sockets[0].getsockname()[1],
        protocol="http",
        weather=weather,
        partition=parted,
        seed="1",
        source=owner,
    )
    await line.open(0)
    try:
        yield line, seen
    finally:
        await line.close()
        server.close()


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    try:
        async with asyncio.timeout(2):
            return await reader.read(100)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("chances", "reached", "answer"),
    [
        ({}, 1, ANSWER),
        ({"repeated": 1.0}, 2, ANSWER),
        ({"lost": 1.0}, 0, b""),
        ({"answer_lost": 1.0}, 1, b""),
    ],
)
async def test_line__does_to_a_request_what_the_weather_says(
    chances: dict[str, float], reached: int, answer: bytes
) -> None:
    calm = {"lost": 0.0, "answer_lost": 0.0, "repeated": 0.0, "late": 0.0}
    async with a_line(Weather(is_bad=True, **(calm | chances))) as (line, seen):  # type: ignore[arg-type]
        assert await ask(line.port) == answer
        assert seen == [REQUEST] * reached


async def test_line__a_partition_lets_nothing_through() -> None:
    async with a_line(Weather(), owner="worker-1", apart=frozenset({"worker-1"})) as (line, seen):
        assert await ask(line.port) == b""
        assert seen == []


def test_owners__find_whose_a_connection_is() -> None:
    code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-c", code, str(port)], stdin=subprocess.PIPE, start_new_session=True)
        try:
            connection, (_, source) = server.accept()
            assert Owners({child.pid: "worker-1"}).of(source, port) == "worker-1"
            connection.close()
        finally:
            child.kill()
            child.communicate()


def test_clock__is_ahead_by_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "clock").write_bytes(struct.pack("d", 40.0))
    folder = Path(__file__).parents[2] / "benchmarks" / "chaos" / "clock"
    environment = {**os.environ, "PYTHONPATH": str(folder), "CHAOS_CLOCK": str(tmp_path / "clock")}
    code = "import time, datetime; print(time.time() - time.clock_gettime(time.CLOCK_REALTIME))"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 39 < float(said.stdout) < 41
