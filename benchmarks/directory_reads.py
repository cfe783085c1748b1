"""CPU cost of reading the directory: N nodes on this machine, each reading K keys R times. Counts p2pd too.

    python -m benchmarks.directory_reads [--quick] [--nodes N] [--keys K] [--rows N] [--rounds R]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from benchmarks.command import count, finish, run
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


async def measure(*, nodes: int, keys: int, rows: int, rounds: int) -> dict[str, float]:
    """Start the network, fill it, read, print."""
    names = [f"{RUN}/submissions/1/{number}" for number in range(keys)]
    async with contextlib.AsyncExitStack() as stack:
        publishers = await start(stack, nodes)
        directories = list(publishers)
        while any(d.stats()["table"] < nodes - 1 for d in directories):  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.1)
        return await publish(publishers, names, rows) | await read(directories, names, rows, rounds)


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


async def publish(
    publishers: Mapping[HivemindDirectory, Publisher], names: Sequence[str], rows: int
) -> dict[str, float]:
    """So many rows under each key, by the nodes in turn; what one costs."""
    pids, senders = pids_of(publishers), list(publishers.values())
    before, started = cpu_seconds(pids), time.perf_counter()
    for name in names:
        for number in range(rows):
            publisher = senders[number % len(senders)]
            subkey = f"{publisher.node}:{number}"
            await publisher.publish(
                kind="submission/1", record_key=name, subkey=subkey, payload=b"x" * 700, lifetime=600
            )
    made = len(names) * rows
    spent, took = 1000 * (cpu_seconds(pids) - before) / made, 1000 * (time.perf_counter() - started) / made
    print(f"publish: {spent:.1f} ms CPU, {took:.1f} ms each", flush=True)
    return {"publish_cpu_ms": round(spent, 2), "publish_ms": round(took, 2)}


async def read(
    directories: Sequence[HivemindDirectory], names: Sequence[str], rows: int, rounds: int
) -> dict[str, float]:
    """Every key by each node, so often; what one such reading costs, and the fewest rows that one saw."""
    pids, wanted = pids_of(directories), len(names) * rows
    before, calls = cpu_seconds(pids), sum(directory.stats()["calls"] for directory in directories)
    started, least = time.perf_counter(), wanted
    for _ in range(rounds):
        for directory in directories:
            found = await directory.read(names)
            least = min(least, sum(map(len, found.values())))
    reads = rounds * len(directories)
    spent, took = 1000 * (cpu_seconds(pids) - before) / reads, 1000 * (time.perf_counter() - started) / reads
    asked = (sum(directory.stats()["calls"] for directory in directories) - calls) / reads
    print(
        f"read of {len(names)} keys, {rows} rows each, {len(directories)} nodes: {spent:.1f} ms CPU, "
        f"{took:.1f} ms, {asked:.1f} calls; fewest rows seen {least} of {wanted}"
    )
    figures = {"read_cpu_ms": round(spent, 2), "read_ms": round(took, 2), "calls": round(asked, 2)}
    return figures | {"fewest_rows": least, "rows_there": wanted}


def pids_of(directories: Iterable[HivemindDirectory]) -> list[int]:
    """Ids of this process and every p2pd."""
    return [os.getpid(), *(directory.daemon_pid or os.getpid() for directory in directories)]


SIZES = {"nodes": 9, "keys": 12, "rows": 8, "rounds": 20}
QUICK_SIZES = {"nodes": 5, "keys": 6, "rows": 4, "rounds": 10}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.directory_reads", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a small network")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=count, help=f"{size} when not given")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    defaults = QUICK_SIZES if options.quick else SIZES
    sizes = {name: getattr(options, name) or size for name, size in defaults.items()}
    finish("directory_reads", **sizes, **asyncio.run(measure(**sizes)))


if __name__ == "__main__":
    run(main)
