"""What a flood costs its target: rows from one identity and from many, and connections that never send anything.

python -m benchmarks.floods [--rows N] [--connections N]

The rows go into the store that DHT nodes and boards share. Each is valid in every respect, and honest rows are
interspersed. The connections go to a relay on loopback, from one address and from fifty, while an honest reader at
another address requests its status.
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

import httpx

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


def flood_rows(identities: int, rows: int) -> str:
    """Every identity writes equally many rows, half of them under one key, half under keys of
    its own. Returns a table line."""
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
    return (
        f"| {rows:,} rows of {identities:,} identities | {board.rows:,} rows, {board.total_bytes / 2**20:.1f} MiB held "
        f"| {seconds / rows * 1e6:.0f} us a row | +{(_memory() - before) / 2**20:.0f} MiB | {kept} of {HONEST} |"
    )


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


async def flood_connections(addresses: int, count: int) -> str:
    """Open connections that never send a request, and reopen those that are closed. Returns a table line."""
    with tempfile.TemporaryDirectory() as folder:
        relay = Relay(NodeKey.generate(), root=Path(folder), run=RUN, trainers=[], is_member=lambda node: False)
        async with serve(relay.app, host="127.0.0.1", port=0) as url, httpx.AsyncClient(timeout=30) as http:
            port = int(url.rpartition(":")[2])
            before, opened = _memory(), [0]
            async with asyncio.TaskGroup() as group:
                loris = [
                    group.create_task(_hold(f"127.0.1.{1 + number % addresses}", port, opened))
                    for number in range(count)
                ]
                await asyncio.sleep(2)
                answers = [await _ask(http, url) for _ in range(QUESTIONS)]
                for task in loris:
                    task.cancel()
            seconds = [spent for status, spent in answers if status == httpx.codes.OK]
            slow = f"{statistics.median(seconds) * 1000:.1f} ms" if seconds else "none"
            return (
                f"| {count:,} connections of {addresses} | {opened[0]:,} opened | +{(_memory() - before) / 2**20:.0f} MiB "
                f"| {len(seconds)} of {QUESTIONS} answered, median {slow} |"
            )


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
    parser = argparse.ArgumentParser(description="What a flood costs who is flooded.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=2000)
    options = parser.parse_args(words)
    raise_file_limit()
    print("| flood | held | time | memory | honest rows kept |\n|---|---|---|---|---|")
    for identities in (1, 2000):
        print(flood_rows(identities, options.rows), flush=True)
    print("\n| flood | opened in all | memory | an honest reader |\n|---|---|---|---|")
    for addresses in (1, 50):
        print(asyncio.run(flood_connections(addresses, options.connections)), flush=True)


if __name__ == "__main__":
    main()
