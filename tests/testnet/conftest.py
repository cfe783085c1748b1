"""Networks of real processes on loopback; tests wait for events in their event files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.testnet.events import EventTail
from node.testnet.forking import ForkServer
from node.testnet.plan import NodePlan, TestnetOptions, TestnetPlan, free_ports, make_plan
from node.testnet.processes import Child, processes_of, stop_all
from node.testnet.setup import Prepared, node_child, prepare_run, start_chain

Event = dict[str, Any]


class Network:
    """The processes of one network. All events of each node are kept in order."""

    def __init__(self, plan: TestnetPlan, prepared: Prepared, chain: Child, forks: ForkServer) -> None:
        self.plan, self.prepared, self.chain, self._forks = plan, prepared, chain, forks
        self.children: dict[str, Child] = {}
        self._said: dict[str, list[Event]] = {}
        self._tails: dict[str, EventTail] = {}

    def node(self, name: str) -> NodePlan:
        """The plan of a node."""
        return next(node for node in self.plan.nodes if node.name == name)

    async def start(self, name: str) -> None:
        """Start or restart a node."""
        child = node_child(self.node(name), self._forks)
        self.children[name] = child
        await child.start()

    async def start_all(self) -> None:
        """Start every node of the plan."""
        for node in self.plan.nodes:
            await self.start(node.name)

    async def start_cheat(self, name: str, *, wallet: str) -> None:
        """Start the cheating worker."""
        home = self.plan.directory / name
        await self._start_adversary(name, "cheating_worker", str(self.prepared.join_file), str(home), wallet)

    async def start_liar(self, name: str) -> None:
        """Start a validator of the plan as a lying one."""
        await self._start_adversary(name, "lying_validator", str(self.node(name).config_file))

    async def _start_adversary(self, name: str, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.testnet.{module}", *arguments]
        child = Child(name, command, output=self.plan.directory / name / "output.log", forks=self._forks)
        self.children[name] = child
        await child.start()

    def signal(self, name: str, number: signal.Signals) -> None:
        """SIGSTOP freezes a node, SIGCONT lets it continue."""
        os.kill(self.children[name].pid, number)

    async def stop_chain(self) -> None:
        """Kill the chain, so that no RPC end-point answers any more."""
        self.chain.kill()
        await self.chain.wait()

    async def restart_chain(self, *, forget: int) -> None:
        """Restart the chain without its last blocks: others take their place, and the
        transactions in them are undone."""
        journal = self.plan.directory / "chain" / "journal"
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(lines[: len(lines) - forget]))
        await self.chain.start()

    async def kill(self, name: str) -> None:
        """Kill -9, without an OFFLINE record."""
        child = self.children[name]
        child.kill()
        await child.wait()

    def said(self, name: str) -> list[Event]:
        """All events of a node so far."""
        tail = self._tails.setdefault(name, EventTail(self.plan.directory / name / "events.jsonl"))
        events = self._said.setdefault(name, [])
        events += [dict(event) for event in tail.read()]
        return events

    async def wait_for(
        self, name: str, event: str, *, where: Callable[[Event], bool] = lambda event: True, seconds: float = 120
    ) -> Event:
        """Wait for the first such event of a node."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for found in self.said(name):
                        if found["event"] == event and where(found):
                            return found
                    self._check_alive(name)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            last = "\n".join(self.children[name].last_lines(12))
            raise AssertionError(f"{name} did not say {event} in {seconds} s; its last lines:\n{last}") from None

    def _check_alive(self, name: str) -> None:
        child = self.children[name]
        if child.code is not None and child.code != 0:
            raise AssertionError(f"{name} ended with {child.code}:\n" + "\n".join(child.last_lines(12)))


@asynccontextmanager
async def running_network(options: TestnetOptions) -> AsyncIterator[Network]:
    """A chain with a run on it, and no node yet. On leaving, everything is stopped, and nothing may be left behind."""
    plan = make_plan(options)
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        forks = ForkServer(output=plan.directory / "forkserver.log")
        stack.push_async_callback(forks.close)
        await forks.open()
        chain, rpc = await start_chain(plan, port)
        stack.push_async_callback(chain.stop)
        network = Network(plan, await prepare_run(plan, options, rpc), chain, forks)
        try:
            yield network
        finally:
            await stop_all(network.children.values())
    left = processes_of(os.getpid())
    assert not left, f"processes were left over: {left}"


@pytest.fixture(autouse=True)
def _untraced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test is marked `no_cover`, its processes are not traced for coverage either: with it a node's start takes
    half as long again, and killed nodes leave no record of it."""
    if request.node.get_closest_marker("no_cover"):
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
async def network(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    """A network with the node counts given as the fixture's parameter."""
    async with running_network(TestnetOptions(directory=tmp_path / "net", **request.param)) as running:
        yield running
