"""The broadcasts that are measured: ours over loopback, ours over throttled links, and the peer package's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast.processes import Child, Said, child, node
from benchmarks.shardcast.throttle import Link, throttled
from node.testnet.plan import free_ports

SHARDS, SHARDS_OF_CHAIN = 64, 128
"""As many as the trainer makes. A chain adds the time of two shards per hop, so it needs more of them."""
PEER_SHARD = 50_000_000
RELAYS = 2
PEER_SCRIPT = Path(__file__).with_name("peer_node.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from the publish call, and resources used: MB and CPU seconds by kind of
    process, the largest of each kind."""

    sealed: float
    published: float
    first: float
    last: float
    rss: dict[str, float]
    cpu: dict[str, float]
    cpu_of_all: float = 0.0


@dataclass(frozen=True, slots=True)
class Nodes:
    """The processes of one broadcast, ready to start."""

    origin: Child
    relays: list[Child]
    clients: list[Child]

    def all(self) -> list[Child]:
        """All of them."""
        return [self.origin, *self.relays, *self.clients]


async def broadcast(source: Path, into: Path, *, clients: int, relays: int = RELAYS) -> Outcome:
    """Origin, relays that know each other, and clients that know every relay, all on loopback."""
    ports = free_ports(relays)
    urls = {str(number): f"http://127.0.0.1:{port}" for number, port in enumerate(ports)}
    async with AsyncExitStack() as stack:
        row = str(into / "row")
        nodes = Nodes(
            await stack.enter_async_context(
                child(node(role="origin", folder=str(source), relays=urls, row=row, shards=SHARDS))
            ),
            [
                await stack.enter_async_context(child(node(**_relay(number, into, port=port, relays=urls))))
                for number, port in enumerate(ports)
            ],
            [
                await stack.enter_async_context(
                    child(node(role="client", folder=str(into / f"client{number}"), relays=urls))
                )
                for number in range(clients)
            ],
        )
        return await _measure(nodes)


async def throttled_chain(source: Path, into: Path, *, link: Link) -> Outcome:
    """Origin -> relay -> relay -> client, each knowing only the one before; every link has the
    bandwidth and delay of `link`."""
    ports = free_ports(2)
    row = str(into / "row")
    async with AsyncExitStack() as stack:
        gates = [await stack.enter_async_context(throttled(port, link)) for port in (ports[0], ports[0], ports[1])]
        up, across, down = ({str(number): url} for number, url in zip((0, 0, 1), gates, strict=True))
        nodes = Nodes(
            await stack.enter_async_context(
                child(node(role="origin", folder=str(source), relays=up, row=row, shards=SHARDS_OF_CHAIN))
            ),
            [
                await stack.enter_async_context(child(node(**_relay(0, into, port=ports[0], relays={})))),
                await stack.enter_async_context(child(node(**_relay(1, into, port=ports[1], relays=across)))),
            ],
            [await stack.enter_async_context(child(node(role="client", folder=str(into / "client"), relays=down)))],
        )
        return await _measure(nodes)


def _relay(number: int, into: Path, *, port: int, relays: dict[str, str]) -> dict[str, object]:
    folder = str(into / f"relay{number}")
    return {
        "role": "relay",
        "number": number,
        "folder": folder,
        "port": port,
        "relays": relays,
        "row": str(into / "row"),
    }


async def _measure(nodes: Nodes) -> Outcome:
    for one in nodes.all():
        await one.hear("ready")
    idle = _cpu_of(nodes.all())
    nodes.origin.tell()
    began = (await nodes.origin.hear("began"))["at"]
    sealed = await nodes.origin.hear("sealed")
    for one in nodes.clients:
        one.tell(sealed["digest"])
    done = await asyncio.gather(*(one.hear("done") for one in nodes.clients))
    published = await nodes.origin.hear("published")
    ends = [said["at"] - began for said in done]
    used = _cpu_of(nodes.all()) - idle
    spent = {
        "origin": [await nodes.origin.stop()],
        "relay": [await one.stop() for one in nodes.relays],
        "client": [await one.stop() for one in nodes.clients],
    }
    return Outcome(
        sealed["at"] - began,
        published["at"] - began,
        min(ends),
        max(ends),
        _most(spent, "rss"),
        _most(spent, "cpu"),
        used,
    )


def _cpu_of(processes: Iterable[Child]) -> float:
    return sum(one.cpu() for one in processes)


def _most(spent: dict[str, list[Said]], name: str) -> dict[str, float]:
    return {kind: max(float(said[name]) for said in all_said) for kind, all_said in spent.items()}


async def peer_broadcast(
    python: str, file: Path, into: Path, *, clients: int, relays: int = RELAYS, is_helped: bool
) -> Outcome:
    """The same with the `shardcast` package of the given interpreter: origin first, and relays that poll every second.

    Its relays announce a version before they have its shards, so clients get 404s and wait 2 to 15 seconds
    between tries. `is_helped`: the clients are started once both relays have every shard, which nothing
    could tell them in practice.
    """
    origin_port, *ports = free_ports(1 + relays)
    upstream = f"http://127.0.0.1:{origin_port}"
    servers = [f"http://127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def started(*arguments: object) -> AsyncIterator[Child]:
            command = [python, str(PEER_SCRIPT), *map(str, arguments)]
            async with child(command, quiet=True) as one:
                await one.hear("ready")  # one after the other, because they share a file in /tmp
                yield one

        origin = await stack.enter_async_context(started("origin", into / "origin", origin_port, file))
        middles = [into / f"middle{number}" for number in range(relays)]
        servers_up = [
            await stack.enter_async_context(started("middle", folder, port, upstream))
            for folder, port in zip(middles, ports, strict=True)
        ]
        readers = [
            await stack.enter_async_context(started("client", into / f"reader{number}", 0, *servers))
            for number in range(clients)
        ]
        everyone = [origin, *servers_up, *readers]
        idle, began = _cpu_of(everyone), time.monotonic()
        origin.tell()
        shards = -(-(await asyncio.to_thread(file.stat)).st_size // PEER_SHARD)
        while is_helped and min(await asyncio.to_thread(_count_shards, middles)) < shards:  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.02)
        for one in readers:
            one.tell()
        done = await asyncio.gather(*(one.hear("done") for one in readers))
        published = await origin.hear("published")
        ends = [said["at"] - began for said in done]
        used = _cpu_of(everyone) - idle
        return Outcome(0.0, published["at"] - began, min(ends), max(ends), {}, {}, used)


def _count_shards(folders: list[Path]) -> list[int]:
    return [len(list(folder.glob("v1/*.bin"))) for folder in folders]
