"""CPU cost of reading the directory: N nodes on this machine, each reading K keys R times. Counts p2pd too.

python benchmarks/directory_reads.py [nodes] [keys] [rows per key] [rounds]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from dht.directory import HivemindDirectory
from dht.identity import NodeKey
from dht.records import Publisher

RUN = "ab" * 32


def free_port() -> int:
    """A port nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(nodes: int, keys: int, rows: int, rounds: int) -> None:
    """Start the network, fill it, read, print."""
    async with contextlib.AsyncExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directories: list[HivemindDirectory] = []
        publishers: list[Publisher] = []
        for number in range(nodes):
            key = NodeKey.generate()
            key.save(base / str(number) / "key")
            directory = await stack.enter_async_context(
                HivemindDirectory.open(
                    key_path=base / str(number) / "key",
                    host_maddrs=[f"/ip4/127.0.0.1/tcp/{free_port()}"],
                    initial_peers=directories[0].addresses() if directories else [],
                    run=RUN,
                    limits={"submission/1": 3072},
                    lifetimes={"submission/1": 600},
                    state_dir=base / str(number),
                )
            )
            directories.append(directory)
            publishers.append(Publisher(key, directory, run=RUN, state=None))
        while any(d.stats()["table"] < nodes - 1 for d in directories):  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.1)
        names = [f"{RUN}/submissions/1/{number}" for number in range(keys)]
        started, published = time.perf_counter(), 0
        pids = [os.getpid(), *(directory.daemon_pid or os.getpid() for directory in directories)]
        before = cpu_seconds(pids)
        for name in names:
            for number in range(rows):
                publisher = publishers[number % nodes]
                subkey = f"{publisher.node}:{number}"
                await publisher.publish(
                    kind="submission/1", record_key=name, subkey=subkey, payload=b"x" * 700, lifetime=600
                )
                published += 1
        spent = cpu_seconds(pids) - before
        print(
            f"publish: {spent / published * 1000:.1f} ms CPU, {(time.perf_counter() - started) / published * 1000:.1f} ms each"
        )
        before, calls = cpu_seconds(pids), sum(directory.stats()["calls"] for directory in directories)
        started = time.perf_counter()
        least = keys * rows
        for _ in range(rounds):
            for directory in directories:
                found = await directory.read(names)
                least = min(least, sum(map(len, found.values())))
        spent, reads = cpu_seconds(pids) - before, rounds * nodes
        calls = sum(directory.stats()["calls"] for directory in directories) - calls
        print(
            f"read of {keys} keys, {rows} rows each, {nodes} nodes: {spent / reads * 1000:.1f} ms CPU, "
            f"{(time.perf_counter() - started) / reads * 1000:.1f} ms, {calls / reads:.1f} calls; "
            f"fewest rows seen {least} of {keys * rows}"
        )


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    asyncio.run(measure(*(numbers + [9, 12, 8, 20][len(numbers) :])))
