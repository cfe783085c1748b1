"""Time from publishing a checkpoint until the last client has verified it, with every node in its own process.

python -m benchmarks.shardcast [--quick | --large | --sizes MB ...] [--peer PYTHON] [--only NAME ...]

Origin, two relays, two or four clients on loopback. The floor is one copy and one SHA-256 of the same bytes by one
process, measured in the same run; the floor of a whole broadcast is that much for each relay and client, divided among
the cores. `--peer` names an interpreter that has PyPI `shardcast==0.3.2` (it needs wget), which then moves the same
bytes: once as it is, and once `helped`, with clients that begin when the relays have everything. Before each of these,
memory is filled with file pages, as on a machine that has been up for a while (`--memory as-it-is` omits that). The
throttled case is a chain of three links of 200 Mbit/s and 20 ms each.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.command import count, finish, python_with, run
from benchmarks.shardcast.broadcast import RELAYS, Outcome, broadcast, peer_broadcast, throttled_chain
from benchmarks.shardcast.memory import Filler
from benchmarks.shardcast.processes import PATIENCE
from benchmarks.shardcast.throttle import Link

LINK = Link(bandwidth=200e6, delay=0.02)
BLOCK = 2**20
CASES = ("loopback", "peer", "throttled")


def make_source(folder: Path, size: int) -> Path:
    """One file of random bytes."""
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        for start in range(0, size, BLOCK):
            file.write(os.urandom(min(BLOCK, size - start)))
    return folder


def floor(source: Path, into: Path) -> tuple[float, float]:
    """Seconds of one copy and of one SHA-256, by one process."""
    file, began = source / "model.safetensors", time.perf_counter()
    with file.open("rb") as reader, into.open("wb") as writer:
        while block := reader.read(BLOCK):
            writer.write(block)
    copied, digest = time.perf_counter(), hashlib.sha256()
    with file.open("rb") as reader:
        while block := reader.read(BLOCK):
            digest.update(block)
    into.unlink()
    return copied - began, time.perf_counter() - copied


def measure(base: Path, size: int, *, clients: int, peer: str | None, settle: Callable[[], None]) -> dict[str, object]:
    """One size on loopback: floor, ours, the peer's. `settle` is called before each."""
    source = make_source(base / "source", size)
    settle()
    copy, sha = floor(source, base / "copy")
    (base / "ours").mkdir()
    settle()
    ours = asyncio.run(broadcast(source, base / "ours", clients=clients))
    shutil.rmtree(base / "ours")
    row = _row(f"{size / 1e6:.0f} MB, {clients} clients", size, ours)
    row |= {"copy_seconds": copy, "sha256_seconds": sha, "times_floor": ours.last / (copy + sha)}
    whole = (copy + sha) * max(1.0, (RELAYS + clients) / len(os.sched_getaffinity(0)))
    row |= {"times_floor_of_all": ours.last / whole}
    row |= {f"hash_share_{kind}": sha / ours.cpu[kind] for kind in ("relay", "client")}
    if peer:
        for name, is_helped in (("peer", False), ("helped_peer", True)):
            settle()
            row |= _beside_peer(base / name, source, ours, name, python=peer, clients=clients, is_helped=is_helped)
    shutil.rmtree(base)
    return row


def _beside_peer(
    base: Path, source: Path, ours: Outcome, name: str, *, python: str, clients: int, is_helped: bool
) -> dict[str, object]:
    file = source / "model.safetensors"
    try:
        theirs = asyncio.run(peer_broadcast(python, file, base, clients=clients, is_helped=is_helped))
    except TimeoutError:
        return {f"{name}_last_seconds": f"more than {PATIENCE:g}"}
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return {
        f"{name}_last_seconds": theirs.last,
        f"times_faster_than_{name}": theirs.last / ours.last,
        f"times_less_cpu_than_{name}": theirs.cpu_of_all / ours.cpu_of_all,
    }


def measure_throttled(base: Path, size: int) -> dict[str, object]:
    """The chain of narrow links. The bound is size divided by bandwidth."""
    source = make_source(base / "source", size)
    (base / "ours").mkdir()
    ours = asyncio.run(throttled_chain(source, base / "ours", link=LINK))
    bound = size * 8 / LINK.bandwidth
    shutil.rmtree(base)
    row = _row(f"{size / 1e6:.0f} MB, chain of 3 links, 200 Mbit/s", size, ours)
    return row | {"bound_seconds": bound, "times_bound": ours.last / bound}


def _row(name: str, size: int, ours: Outcome) -> dict[str, object]:
    return {"case": name, "bytes": size, "mb_per_second": size / 1e6 / ours.last, **asdict(ours)}


def show(row: dict[str, object]) -> None:
    """One row for people."""
    sys.stdout.write(f"\n{row['case']}\n")
    for name, value in row.items():
        if isinstance(value, dict):
            value = ", ".join(f"{kind} {number:.2f}" for kind, number in value.items())
        elif isinstance(value, float):
            value = f"{value:.2f}"
        if name not in ("case", "bytes"):
            sys.stdout.write(f"  {name:22} {value}\n")
    sys.stdout.flush()


def main(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    sizes = [(64, 2)] if arguments.quick else [(500, 2), (500, 4)]
    sizes += [(2000, 2)] if arguments.large else []
    sizes = [(size, arguments.clients) for size in arguments.sizes] if arguments.sizes else sizes
    peer = arguments.peer if "peer" in arguments.only else None
    memory = arguments.memory or ("as-it-is" if arguments.quick else "full")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="shardcast-") as base:
        settle = Filler(Path(base)).fill if memory == "full" else os.sync
        if "loopback" in arguments.only:
            for number, (size, clients) in enumerate(sizes):
                (folder := Path(base) / str(number)).mkdir()
                rows.append(measure(folder, size * 1_000_000, clients=clients, peer=peer, settle=settle))
                show(rows[-1])
        if "throttled" in arguments.only:
            (folder := Path(base) / "throttled").mkdir()
            rows.append(measure_throttled(folder, 64_000_000 if arguments.quick else 256_000_000))
            show(rows[-1])
    sys.stdout.write("\n")
    finish("shardcast", memory=memory, rows=rows)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shardcast", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="64 MB only")
    parser.add_argument("--large", action="store_true", help="2 GB too")
    parser.add_argument("--sizes", nargs="+", type=count, metavar="MB", help="these sizes only")
    parser.add_argument("--clients", type=count, default=2, help="with --sizes")
    parser.add_argument("--peer", type=python_with("shardcast"), help="an interpreter that has shardcast==0.3.2")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="leave the other cases out")
    parser.add_argument(
        "--memory", choices=("full", "as-it-is"), help="before each broadcast; as it is with --quick, else full"
    )
    parser.add_argument("--directory", help="where the bytes go; default the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    run(lambda: main(parse()))
