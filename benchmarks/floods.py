"""What a flood costs its target: rows from one identity and from many, and connections that never send anything.

    python -m benchmarks.floods [--quick] [--rows N] [--connections N]

Rows go into the store that DHT nodes and boards share, each valid in every respect; honest rows go in between. Connections are
opened to a relay on loopback, from one address and from fifty, while an honest reader at another address asks for its status.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command import count, finish, run
from dht.envelope import seal, to_bytes
from dht.identity import NodeKey
from dht.records import unix_ms
from node.health import raise_file_limit
from roles.relay import Board, Relay, serve

RUN = "ab" * 32
KEY = f"{RUN}/nodes/worker"
HONEST = 50
QUESTIONS = 40
PAYLOAD = b"x" * 800


def flood_rows(identities: int, rows: int) -> dict[str, Any]:
    """Every identity says as much as the others, half of it under one key, half under its own. Prints a line of a table."""
    now = unix_ms()
    flooders = [NodeKey.generate() for _ in range(identities)]
    honest = [NodeKey.generate() for _ in range(HONEST)]
    members = {key.node for key in honest}
    flood = [
        _row(flooders[number % identities], number, key=KEY if number % 2 else f"{KEY}/{number}", now=now)
        for number in range(rows)
    ]
    board = Board(
        run=RUN,
        limits={"node/1": 4096},
        lifetimes={"node/1": 90},
        clock=lambda: now,
        settled=lambda row: row.signer in members,  # their ids are on the ledger
    )
    said = [_row(key, 0, key=KEY, now=now) for key in honest]
    before, began = _memory(), time.perf_counter()
    for number, data in enumerate(flood):
        board.put(data)
        if number % (rows // HONEST) == 0:
            board.put(said[number // (rows // HONEST) % HONEST])
    seconds = time.perf_counter() - began
    held = set(board.read([KEY], board="", since=0).rows)
    kept = sum(row in held for row in said)
    held_mib, grown_mib, each = board.total_bytes / 2**20, (_memory() - before) / 2**20, seconds / rows * 1e6
    print(
        f"| {rows:,} rows of {identities:,} identities | {board.rows:,} rows, {held_mib:.1f} MiB held "
        f"| {each:.0f} us a row | +{grown_mib:.0f} MiB | {kept} of {HONEST} |",
        flush=True,
    )
    return {
        "identities": identities,
        "rows": rows,
        "held": board.rows,
        "held_mib": round(held_mib, 1),
        "us_a_row": round(each, 1),
        "grown_mib": round(grown_mib, 1),
        "honest_kept": kept,
    }


def _row(signer: NodeKey, number: int, *, key: str, now: int) -> bytes:
    row = seal(
        signer,
        run=RUN,
        kind="node/1",
        record_key=key,
        subkey=f"{signer.node}:{number}",
        sequence=now,
        expiration=now + 60_000,
        payload=PAYLOAD,
    )
    return to_bytes(row)


async def flood_connections(addresses: int, connections: int) -> dict[str, Any]:
    """Connections that never send a request, opened again when they are closed. Prints a line of a table."""
    with tempfile.TemporaryDirectory() as folder:
        relay = Relay(NodeKey.generate(), root=Path(folder), run=RUN, trainers=[], is_member=lambda node: False)
        async with serve(relay.app, host="127.0.0.1", port=0) as url, httpx.AsyncClient(timeout=30) as http:
            port = int(url.rpartition(":")[2])
            before, opened = _memory(), [0]
            async with asyncio.TaskGroup() as group:
                loris = [
                    group.create_task(_hold(f"127.0.1.{1 + number % addresses}", port, opened))
                    for number in range(connections)
                ]
                await asyncio.sleep(2)
                answers = [await _ask(http, url) for _ in range(QUESTIONS)]
                for task in loris:
                    task.cancel()
            seconds = [spent for status, spent in answers if status == httpx.codes.OK]
            slow = round(statistics.median(seconds) * 1000, 1) if seconds else None
            grown_mib = (_memory() - before) / 2**20
            print(
                f"| {connections:,} connections of {addresses} | {opened[0]:,} opened | +{grown_mib:.0f} MiB "
                f"| {len(seconds)} of {QUESTIONS} answered, median {'none' if slow is None else f'{slow} ms'} |",
                flush=True,
            )
            return {
                "addresses": addresses,
                "connections": connections,
                "opened": opened[0],
                "grown_mib": round(grown_mib, 1),
                "answered": len(seconds),
                "median_ms": slow,
            }


async def _hold(address: str, port: int, opened: list[int]) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            opened[0] += 1
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.5)


async def _ask(http: httpx.AsyncClient, url: str) -> tuple[int, float]:
    began = time.perf_counter()
    try:
        status = (await http.get(f"{url}/status", headers={"Connection": "close"})).status_code
    except httpx.HTTPError:
        status = 0
    await asyncio.sleep(0.05)
    return status, time.perf_counter() - began - 0.05


def _memory() -> int:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floods", description="What a flood costs who is flooded."
    )
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 500 connections")
    parser.add_argument("--rows", type=count, help=f"100,000 when not given; at least {HONEST}")
    parser.add_argument("--connections", type=count, help="2,000 when not given")
    options = parser.parse_args(words)
    rows = options.rows or (20_000 if options.quick else 100_000)
    connections = options.connections or (500 if options.quick else 2000)
    if rows < HONEST:
        parser.error(f"--rows: at least {HONEST}, as many honest rows go in between")
    raise_file_limit()
    print("| flood | held | time | memory | honest rows kept |\n|---|---|---|---|---|")
    floods = [flood_rows(identities, rows) for identities in (1, 2000)]
    print("\n| flood | opened in all | memory | an honest reader |\n|---|---|---|---|")
    silent = [asyncio.run(flood_connections(addresses, connections)) for addresses in (1, 50)]
    finish("floods", rows=floods, connections=silent)


if __name__ == "__main__":
    run(main)
