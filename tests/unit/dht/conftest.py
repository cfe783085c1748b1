"""Valid-by-default rows, keys and networks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dht.directory import HivemindDirectory
from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from dht.memory import FakeClock, MemoryNetwork
from dht.records import unix_ms

RUN = "ab" * 32
LIMITS = {"node/1": 4096, "head/1": 1024}
LIFETIMES = {"node/1": 90, "head/1": 60}
NOW = 1_700_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def network(clock: FakeClock) -> MemoryNetwork:
    return MemoryNetwork(run=RUN, limits=LIMITS, lifetimes=LIFETIMES, clock=clock)


@pytest.fixture
def make_row() -> Callable[..., Envelope]:
    """`make_row(number)` seals a valid row with key number `number`; any field can be overridden."""

    def make(number: int = 1, *, tail: str = "", **fields: Any) -> Envelope:
        key = NodeKey(bytes([number]) * 32)
        valid: dict[str, Any] = {
            "run": RUN,
            "kind": "node/1",
            "record_key": f"{RUN}/nodes/worker",
            "subkey": key.node + tail,
            "sequence": NOW,
            "expiration": NOW + 60_000,
            "payload": b"{}",
        }
        return seal(key, **(valid | fields))

    return make


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Swarm:
    """Real nodes on this machine."""

    def __init__(self, stack: contextlib.AsyncExitStack, base: Path) -> None:
        self.stack = stack
        self.base = base
        self.nodes: list[HivemindDirectory] = []
        self.keys: list[NodeKey] = []

    async def start(self, **options: Any) -> HivemindDirectory:
        """Add a node; its seeds are the nodes before it."""
        number = len(self.keys)
        key = NodeKey.generate()
        folder = self.base / str(number)
        key.save(folder / "key")
        self.keys.append(key)
        defaults: dict[str, Any] = {
            "key_path": folder / "key",
            "host_maddrs": [f"/ip4/127.0.0.1/tcp/{free_port()}"],
            "initial_peers": [address for node in self.nodes for address in node.addresses()],
            "run": RUN,
            "limits": LIMITS,
            "lifetimes": LIFETIMES,
            "peer_cache": folder / "peers.json",
            "state_dir": folder,
        }
        node = await self.stack.enter_async_context(HivemindDirectory.open(**(defaults | options)))
        self.nodes.append(node)
        return node

    async def met(self) -> None:
        """Wait until every node has every other listening node in its table."""
        listening = {node.node_id for node in self.nodes if node.addresses()}
        await _until(lambda: all(node.stats()["table"] == len(listening - {node.node_id}) for node in self.nodes))

    def row(self, number: int, **fields: Any) -> Envelope:
        """A row signed by node `number`, valid now."""
        key, now = self.keys[number], unix_ms()
        valid: dict[str, Any] = {
            "run": RUN,
            "kind": "node/1",
            "record_key": f"{RUN}/nodes/worker",
            "subkey": key.node,
            "sequence": now,
            "expiration": now + 60_000,
            "payload": b"{}",
        }
        return seal(key, **(valid | fields))


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    async with contextlib.AsyncExitStack() as stack:
        yield Swarm(stack, tmp_path)


async def _until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for another process; fails the test when it takes too long."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process's doing: there is nothing to wait on
            await asyncio.sleep(0.02)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    return _until
