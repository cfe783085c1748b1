"""The network under test: its processes, each behind lines of its own, with a clock and a
disk that can be tampered with."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import shutil
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.lines import Line, Partition, Weather
from benchmarks.chaos.processes import Owners, daemon_of
from benchmarks.chaos.schedule import CHAIN
from node.join import JoinString
from node.testnet.events import Event, EventTail
from node.testnet.plan import NodePlan, TestnetOptions, TestnetPlan, free_ports, make_plan
from node.testnet.processes import Child, stop_all
from node.testnet.setup import Prepared, node_child, prepare_run, start_chain

MNT_DETACH = 2
DISK_BYTES = 2**30
"""Size of each node's own small disk, where we may create one."""
FULL = 16 * 1024
"""File size limit for a node's files, where we may not."""
CLOCK_FOLDER = Path(__file__).parent / "clock"
AGAIN_SECONDS = 2.0
"""Delay before a process that ended by itself is restarted, as a service manager would."""


@dataclass
class Stage:
    """Everything that runs. `newest` maps the committed steps seen to the time on our monotonic clock."""

    plan: TestnetPlan
    prepared: Prepared
    chain: Child
    has_disks: bool
    weather: Weather
    lines: list[Line] = field(default_factory=list)
    partition: Partition = field(init=False)
    children: dict[str, Child] = field(default_factory=dict)
    newest: list[tuple[float, int]] = field(default_factory=lambda: [(time.monotonic(), 0)])
    accepted: dict[tuple[str, int, int], int] = field(
        default_factory=dict
    )  # (node, step, index): tokens, as workers reported
    counts: Counter[str] = field(default_factory=Counter)  # warning events by name
    ended: list[str] = field(default_factory=list)  # processes that ended without being killed
    _tails: dict[str, EventTail] = field(default_factory=dict)
    _down: set[str] = field(default_factory=set)  # killed on purpose, not to be restarted yet
    _last: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partition = Partition(owners=lambda: Owners(self.leaders))

    def node(self, name: str) -> NodePlan:
        """The plan of a node."""
        return next(node for node in self.plan.nodes if node.name == name)

    # -- processes -------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start or restart a node or the chain."""
        if name == CHAIN:
            await self.chain.start()
        else:
            node = self.node(name)
            child = node_child(node)
            clock = ["env", f"PYTHONPATH={CLOCK_FOLDER}", f"CHAOS_CLOCK={self.clock_file(name)}"]
            self.children[name] = Child(name, [*clock, *child.command], output=child.output)
            await self.children[name].start()
        self._down.discard(name)

    async def kill(self, name: str) -> None:
        """Kill -9 a process with everything it started."""
        self._down.add(name)
        child = self.chain if name == CHAIN else self.children[name]
        child.kill()
        await child.wait()

    def kill_daemon(self, name: str) -> None:
        """Kill -9 only a node's p2pd."""
        pid = daemon_of(self.children[name].pid) if self.children[name].is_running else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def leaders(self) -> dict[int, str]:
        """Name by process id, for everything that runs."""
        running = {child.pid: name for name, child in self.children.items() if child.is_running}
        return running | ({self.chain.pid: CHAIN} if self.chain.is_running else {})

    async def watch(self) -> None:
        """Read the nodes' events, and restart what ended by itself, forever."""
        while True:
            for name in list(self.children):
                self._read(name)
                child = self.children[name]
                if child.code is not None and name not in self._down:
                    self.ended.append(f"{name} ended with code {child.code}: {' '.join(child.last_lines(2))[-300:]}")
                    self._down.add(name)
                    await asyncio.sleep(AGAIN_SECONDS)
                    await self.start(name)
            await asyncio.sleep(0.1)

    def _read(self, name: str) -> None:
        tail = self._tails.setdefault(name, EventTail(self.node(name).events_file))
        for event in tail.read():
            self._take(name, event)

    def _take(self, name: str, event: Event) -> None:
        if event.get("level") in ("warning", "error"):
            self.counts[f"{name.partition('-')[0]} {event['event']}"] += 1
        if event["event"] == "checkpoint.committed" and event["step"] > self.newest[-1][1]:
            self.newest.append((time.monotonic(), event["step"]))
        if event["event"] == "submission.accepted" and name.startswith("worker"):
            self.accepted[self.node(name).key.node, event["step"], event["index"]] = event["tokens"]

    @property
    def step(self) -> int:
        """The newest committed step."""
        return self.newest[-1][1]

    # -- clock and disk --------------------------------------------------------------------------------------------

    def clock_file(self, name: str) -> Path:
        """Path of the file with the seconds by which this node's clock is ahead."""
        return self.plan.directory / "clocks" / name

    def set_clock(self, name: str, ahead: float) -> None:
        """Set a node's clock forward or back; 0 corrects it."""
        self.clock_file(name).parent.mkdir(exist_ok=True)
        with self.clock_file(name).open("r+b" if self.clock_file(name).exists() else "w+b") as file:
            file.write(struct.pack("d", ahead))

    def fill_disk(self, name: str) -> None:
        """Fill a node's disk completely. Where it has no disk of its own, stop its files from growing."""
        if self.has_disks:
            free = shutil.disk_usage(self.node(name).home).free
            with contextlib.suppress(OSError), (self.node(name).home / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free)
        elif self.children[name].is_running:
            resource.prlimit(self.children[name].pid, resource.RLIMIT_FSIZE, (FULL, resource.RLIM_INFINITY))

    def empty_disk(self, name: str) -> None:
        """Free the disk again."""
        (self.node(name).home / "ballast").unlink(missing_ok=True)
        if not self.has_disks and self.children[name].is_running:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(self.children[name].pid, resource.RLIMIT_FSIZE, unlimited)

    # -- lines -----------------------------------------------------------------------------------------------------

    async def divide(self, apart: frozenset[str]) -> None:
        """Cut these nodes off from all others."""
        self.partition.apart, self.partition.healed = apart, asyncio.Event()
        owners = await asyncio.to_thread(self.partition.owners)
        for line in self.lines:
            line.divide(owners)

    def heal(self) -> None:
        """End the partition."""
        self.partition.apart = frozenset()
        self.partition.healed.set()


@asynccontextmanager
async def running_stage(options: TestnetOptions) -> AsyncIterator[Stage]:
    """A chain with a run on it, lines, and every node started. Everything is stopped on leaving."""
    plan = make_plan(options)
    has_disks = all([_make_disk(node.home) for node in plan.nodes])  # noqa: C419 - each of them, also after a failure
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_remove_disks, plan)
        chain, rpc = await start_chain(plan, free_ports(1)[0])
        stack.push_async_callback(chain.stop)
        stage = Stage(plan, await prepare_run(plan, options, rpc), chain, has_disks, Weather())
        stack.push_async_callback(_close, stage)
        await _lay_lines(stage, seed=options.seed)
        stack.push_async_callback(lambda: stop_all(stage.children.values()))
        for node in plan.nodes:
            stage.set_clock(node.name, 0.0)
            await stage.start(node.name)
        watching = asyncio.create_task(stage.watch())
        try:
            yield stage
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _close(stage: Stage) -> None:
    stage.heal()
    for line in stage.lines:
        await line.close()


async def _lay_lines(stage: Stage, *, seed: int) -> None:
    """Create a line to each listener, and one from each node to the chain. Nodes are
    given only the lines' addresses."""
    plan = stage.plan
    ports = iter(free_ports(2 * len(plan.nodes) + len(plan.relays)))

    async def lay(target: str, port: int, *, is_http: bool, source: str | None = None) -> int:
        protocol = "http" if is_http else "stream"
        line = Line(
            target,
            port,
            protocol=protocol,  # type: ignore[arg-type]
            weather=stage.weather,
            partition=stage.partition,
            seed=str(seed),
            source=source,
        )
        await line.open(next(ports))
        stage.lines.append(line)
        return line.port

    reached: dict[str, str] = {}
    for node in plan.nodes:
        if node.port:
            reached[node.name] = f"/ip4/127.0.0.1/tcp/{await lay(node.name, node.port, is_http=False)}"
    peers = tuple(f"{reached[relay.name]}/p2p/{relay.key.node}" for relay in plan.relays)
    chain_port = int(stage.prepared.rpc.rpartition(":")[2])
    for node in plan.nodes:
        rpc = f"http://127.0.0.1:{await lay(CHAIN, chain_port, is_http=True, source=node.name)}"
        join = node.home / "join"
        join.write_text(f"{JoinString(stage.prepared.spec.run_id, peers=peers, rpc=(rpc,))}\n")
        settings: Mapping[str, str] = {"join": f'"{join}"'}
        if node.name in reached:
            settings = {**settings, "announce": f'["{reached[node.name]}"]'}
        if node.role == "relay":
            url = f"http://127.0.0.1:{await lay(node.name, node.http_port, is_http=True)}"
            settings = {**settings, "http_url": f'"{url}"'}
        kept = [line for line in node.config_file.read_text().splitlines() if line.partition(" ")[0] not in settings]
        node.config_file.write_text("\n".join([*kept, *(f"{name} = {value}" for name, value in settings.items()), ""]))


def _make_disk(folder: Path) -> bool:
    """Mount a small memory disk on this folder, where the system permits (`scripts/chaos` makes a mount namespace)."""
    folder.mkdir(parents=True, exist_ok=True)
    if "CHAOS_DISKS" not in os.environ or sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={DISK_BYTES}".encode()
    return bool(libc.mount(b"chaos", str(folder).encode(), b"tmpfs", 0, size) == 0)


def _remove_disks(plan: TestnetPlan) -> None:
    if "CHAOS_DISKS" in os.environ and sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for node in plan.nodes:
            libc.umount2(str(node.home).encode(), MNT_DETACH)
