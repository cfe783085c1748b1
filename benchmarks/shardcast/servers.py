"""Cost of serving a relay with different HTTP servers: CPU seconds of the server for the same work.

    python -m benchmarks.shardcast.servers [--quick] [--servers NAME ...]

Shards of 16 MiB to four readers at once, short answers over eight kept connections, and 300 questions held open. `ours` is
`roles.relay.serve`: uvicorn's protocol, with our limits, `sendfile`, and bodies received in threads. The others serve the
same application; `aiohttp` is no ASGI server and serves the bare files, as a bound. What is not installed is left out.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import uvicorn

from benchmarks.command import count, finish, run
from dht.encoding import sha256
from dht.identity import NodeKey
from roles.relay import Relay, RelaySettings, serve

SERVERS = ("ours", "uvicorn-h11", "uvicorn-httptools", "hypercorn", "granian", "aiohttp")
BLOBS, BLOB = 4, 2**24
ROUNDS, READERS = 16, 4
SHORT, SHORT_READERS = 4000, 8
HELD = 300
FOLDER = "SERVERS_FOLDER"


def make_relay() -> Relay:
    """A relay over this measurement's folder."""
    settings = RelaySettings(max_disk=2**40, rate=1e9, burst=1e9)
    root, key = Path(os.environ[FOLDER]), NodeKey(b"r" * 32)
    return Relay(key, root=root, run="ab" * 32, trainers=[], is_member=lambda node: False, settings=settings)


def run_server(name: str, port: int) -> None:
    """Run that server in this process."""
    match name:
        case "ours":
            asyncio.run(_serve_ours(port))
        case "uvicorn-h11" | "uvicorn-httptools":
            uvicorn.run(make_relay().app, port=port, http=name.partition("-")[2], access_log=False, log_level="error")
        case "hypercorn":
            config = import_module("hypercorn.config").Config()
            config.bind = [f"127.0.0.1:{port}"]
            asyncio.run(import_module("hypercorn.asyncio").serve(make_relay().app, config))
        case "granian":
            target = "benchmarks.shardcast.servers:granian_app"
            options = {"address": "127.0.0.1", "port": port, "interface": "asgi", "log_enabled": False}
            import_module("granian").Granian(target, **options).serve()
        case "aiohttp":
            web = import_module("aiohttp.web")
            app = web.Application()
            app.router.add_static("/blobs", _flat(Path(os.environ[FOLDER])))
            web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


async def granian_app(scope: object, receive: object, send: object) -> None:
    """The application, created in granian's own process at the first request."""
    if not hasattr(granian_app, "inner"):
        granian_app.inner = make_relay().app  # type: ignore[attr-defined]
    await granian_app.inner(scope, receive, send)  # type: ignore[attr-defined]


async def _serve_ours(port: int) -> None:
    async with serve(make_relay().app, host="127.0.0.1", port=port):
        await asyncio.Event().wait()


def _flat(root: Path) -> Path:
    """The same blobs in one flat folder."""
    flat = root / "flat"
    flat.mkdir(exist_ok=True)
    for path in (root / "blobs").glob("*/*"):
        if not (flat / path.name).exists():
            os.link(path, flat / path.name)
    return flat


@contextmanager
def serving(name: str, folder: Path, port: int) -> Iterator[int]:
    """Run the server as a process; yields its id once it answers."""
    command = [sys.executable, "-m", "benchmarks.shardcast.servers", "--be", name, "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | {FOLDER: str(folder)}, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                ask(http.client.HTTPConnection("127.0.0.1", port, timeout=2), "HEAD", f"/blobs/{'0' * 64}")
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def ask(connection: http.client.HTTPConnection, method: str, path: str) -> int:
    """Make one request. Returns the size of the response."""
    connection.request(method, path)
    reply, size, room = connection.getresponse(), 0, bytearray(2**18)
    while got := reply.readinto(room):
        size += got
    return size


def in_threads(count: int, work: Callable[[http.client.HTTPConnection], object], port: int) -> None:
    """Do the same work over `count` connections at once."""
    with ThreadPoolExecutor(count) as pool:
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(count)]
        list(pool.map(work, connections))


async def hold(port: int) -> float:
    """Seconds for long polls held open for a while and all answered."""
    began = time.monotonic()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /manifests/{'1' * 64} HTTP/1.1\r\nHost: x\r\nX-Wait: 3\r\nConnection: close\r\n\r\n".encode()
        )
        await reader.read()
        writer.close()

    await asyncio.gather(*(one() for _ in range(HELD)))
    return time.monotonic() - began


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu(pid: int) -> float:
    """CPU seconds of the process and its descendants."""
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Peak MB of the largest of these processes."""
    texts = [Path(f"/proc/{one}/status").read_text() for one in family(pid)]
    return max(int(text.split("VmHWM:")[1].split()[0]) for text in texts if "VmHWM:" in text) / 1e3


def measure(name: str, folder: Path, digests: list[str], port: int, *, rounds: int) -> dict[str, float | str]:
    """Measure one, and print its line of the table."""
    with serving(name, folder, port) as pid:
        begun, before = time.monotonic(), cpu(pid)
        in_threads(
            READERS, lambda c: [ask(c, "GET", f"/blobs/{d}") for d in digests * (rounds // BLOBS)] and None, port
        )
        size = READERS * rounds * BLOB / 1e9
        bulk, wall = (cpu(pid) - before) / size, (time.monotonic() - begun) / size
        before = cpu(pid)
        each = SHORT // SHORT_READERS
        in_threads(
            SHORT_READERS, lambda c: [ask(c, "HEAD", f"/blobs/{digests[0]}") for _ in range(each)] and None, port
        )
        short = (cpu(pid) - before) / SHORT * 1e3
        row: dict[str, float | str] = {
            "server": name,
            "cpu_s_per_gb": bulk,
            "wall_s_per_gb": wall,
            "ms_per_short": short,
        }
        held = ""
        if name != "aiohttp":
            before = cpu(pid)
            took = asyncio.run(hold(port))
            row["ms_per_held"] = (cpu(pid) - before) / HELD * 1e3
            held = f"{row['ms_per_held']:14.2f} ({took:.1f} s)"
        row["peak_mb"] = resident(pid)
        print(f"{name:20}{bulk:14.2f}{wall:14.2f}{short:14.2f}{held:>22}{row['peak_mb']:12.0f}", flush=True)
        return row


def available(name: str) -> bool:
    """Whether the server is installed."""
    return name in ("ours", "uvicorn-h11") or importlib.util.find_spec(name.rpartition("-")[2]) is not None


def main() -> int:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shardcast.servers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the shards")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--be", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=count, default=18_430, help="of the first; the next ones have the next")
    args = parser.parse_args()
    if args.be:
        run_server(args.be, args.port)
        return 0
    print(f"{'CPU s per GB':>34}{'wall s per GB':>14}{'ms per short':>14}{'ms per held':>22}{'peak MB':>12}")
    with tempfile.TemporaryDirectory() as folder:
        datas = [os.urandom(BLOB) for _ in range(BLOBS)]
        os.environ[FOLDER] = folder
        for data in datas:
            asyncio.run(make_relay().shelf.store.put(data))
        digests, rounds = [sha256(data) for data in datas], ROUNDS // 4 if args.quick else ROUNDS
        rows = [
            measure(name, Path(folder), digests, args.port + number, rounds=rounds)
            for number, name in enumerate(filter(available, args.servers))
        ]
    finish("shardcast.servers", rows=rows)
    return 0


if __name__ == "__main__":
    run(main)
