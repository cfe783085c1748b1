"""CPU cost of reading the directory: N nodes on this machine, each reading K keys R times. Counts p2pd too.

python benchmarks/directory_reads.py [nodes] [keys] [rows per key] [rounds]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from dht.directory import HivemindDirectory
from dht.identity import NodeKey
from dht.records import Publisher
from node.testnet.plan import free_ports

RUN = "ab" * 32


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(nodes: int, keys: int, rows: int, rounds: int) -> None:
    """Start the network, fill it, read, and print the cost."""
    names = [f"{RUN}/submissions/1/{number}" for number in range(keys)]
    async with contextlib.AsyncExitStack() as stack:
        publishers = await start(stack, nodes)
        directories = list(publishers)
        while any(d.stats()["table"] < nodes - 1 for d in directories):  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.1)
        await publish(publishers, names, rows)
        await read(directories, names, rows, rounds)


async def start(stack: contextlib.AsyncExitStack, nodes: int) -> dict[HivemindDirectory, Publisher]:
    """Start `nodes` nodes; the first is the seed for all others."""
    base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found: dict[HivemindDirectory, Publisher] = {}
    for number, port in enumerate(free_ports(nodes)):
        key = NodeKey.generate()
        key.save(base / str(number) / "key")
        directory = await stack.enter_async_context(
            HivemindDirectory.open(
                key_path=base / str(number) / "key",
                host_maddrs=[f"/ip4/127.0.0.1/tcp/{port}"],
                initial_peers=next(iter(found)).addresses() if found else [],
                run=RUN,
                limits={"submission/1": 3072},
                lifetimes={"submission/1": 600},
                state_dir=base / str(number),
            )
        )
        found[directory] = Publisher(key, directory, run=RUN, state=None)
    return found


async def publish(publishers: Mapping[HivemindDirectory, Publisher], names: Sequence[str], rows: int) -> None:
    """Publish `rows` rows under each key, by the nodes in turn. Prints the cost of one."""
    pids, senders = pids_of(publishers), list(publishers.values())
    before, started = cpu_seconds(pids), time.perf_counter()
    for name in names:
        for number in range(rows):
            publisher = senders[number % len(senders)]
            subkey = f"{publisher.node}:{number}"
            await publisher.publish(
                kind="submission/1", record_key=name, subkey=subkey, payload=b"x" * 700, lifetime=600
            )
    spent, count = cpu_seconds(pids) - before, len(names) * rows
    print(f"publish: {spent / count * 1000:.1f} ms CPU, {(time.perf_counter() - started) / count * 1000:.1f} ms each")


async def read(directories: Sequence[HivemindDirectory], names: Sequence[str], rows: int, rounds: int) -> None:
    """Read every key from each node, `rounds` times. Prints the cost of one such read, and the
    fewest rows that one returned."""
    pids, wanted = pids_of(directories), len(names) * rows
    before, calls = cpu_seconds(pids), sum(directory.stats()["calls"] for directory in directories)
    started, least = time.perf_counter(), wanted
    for _ in range(rounds):
        for directory in directories:
            found = await directory.read(names)
            least = min(least, sum(map(len, found.values())))
    spent, reads = cpu_seconds(pids) - before, rounds * len(directories)
    calls = sum(directory.stats()["calls"] for directory in directories) - calls
    print(
        f"read of {len(names)} keys, {rows} rows each, {len(directories)} nodes: {spent / reads * 1000:.1f} ms CPU, "
        f"{(time.perf_counter() - started) / reads * 1000:.1f} ms, {calls / reads:.1f} calls; "
        f"fewest rows seen {least} of {wanted}"
    )


def pids_of(directories: Iterable[HivemindDirectory]) -> list[int]:
    """Ids of this process and every p2pd."""
    return [os.getpid(), *(directory.daemon_pid or os.getpid() for directory in directories)]


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    asyncio.run(measure(*(numbers + [9, 12, 8, 20][len(numbers) :])))
