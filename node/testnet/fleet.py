"""The processes of a testnet's nodes: started in order, monitored with their state, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node.errors import ConfigError
from node.testnet.events import EventTail
from node.testnet.forking import ForkServer
from node.testnet.outcome import Outcome
from node.testnet.picture import Picture
from node.testnet.plan import NodePlan, TestnetPlan
from node.testnet.processes import (
    GONE_SECONDS,
    Child,
    end_guests,
    guests_in,
    processes_of,
    remove_traces,
    stop_all,
)
from node.testnet.setup import node_child, restart_command

RELAY_SECONDS = 15.0
RESTART_SECONDS = 600.0
"""How long all trainers may be gone before the testnet gives up."""
EJECTED_WORDS = "have struck this node"
"""Appears in the last output of a worker struck by a quorum of validators."""


class Fleet:
    """Every node of a plan, and the chain beside them. `told` receives each event of a node,
    `say` messages for the user."""

    def __init__(
        self,
        plan: TestnetPlan,
        picture: Picture,
        outcome: Outcome,
        *,
        told: Callable[[str, Mapping[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._picture, self._outcome, self._told, self._say = plan, picture, outcome, told, say
        self.chain: Child | None = None
        self.forks = ForkServer(output=plan.directory / "forkserver.log")
        self._children: dict[str, Child] = {}
        self._tails = {node.name: EventTail(node.events_file) for node in plan.nodes}
        self._crashed: dict[str, tuple[float, int]] = {}  # node -> time of the crash, and how often it had started
        self._listening: set[str] = set()
        self._trainers = [node.name for node in plan.trainers]

    async def start(self, stop: asyncio.Event) -> None:
        """Start the relays first and wait until their DHT listens: a node that dials too early waits out a back-off."""
        await self._start(self._plan.relays, stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_SECONDS):
                while not stop.is_set() and not all(self._is_listening(r) for r in self._plan.relays):  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.05)
        await self._start((node for node in self._plan.nodes if node.role != "relay"), stop)

    async def _start(self, nodes: Iterable[NodePlan], stop: asyncio.Event) -> None:
        for node in nodes:
            if stop.is_set():
                return
            child = node_child(node, self.forks)
            self._children[node.name] = child
            await child.start()

    def _is_listening(self, relay: NodePlan) -> bool:
        for event in self._tails[relay.name].read():
            self._told(relay.name, event)
            self._listening |= {relay.name} if event["event"] == "directory.state_changed" else set()
        return relay.name in self._listening or not self._children[relay.name].is_running

    async def stop(self) -> None:
        """Stop guests, workers, validators, trainer, relays, then the chain. Nothing is
        left running, whatever happens."""
        await self._end_guests()
        for role in ("worker", "validator", "trainer", "relay"):
            names = [node.name for node in self._plan.nodes if node.role == role]
            await stop_all(self._children[name] for name in names if name in self._children)
        if self.chain is not None:
            await self.chain.stop()
        await self.forks.close()
        await self._end_leftovers()
        remove_traces([child.pid for child in self._children.values() if child.code is not None])

    async def _end_guests(self) -> None:
        """Stop nodes started by hand in the testnet's folder. Without its chain and relays they would wait forever."""
        if guests := guests_in(self._plan.directory):
            self._say(f"ending the nodes started by hand in its folder (process {', '.join(map(str, guests))}) ..")
            await end_guests(self._plan.directory)

    def kill(self) -> None:
        """Kill every process at once; `stop` then has nothing to wait for."""
        for pid in guests_in(self._plan.directory):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for child in (*self._children.values(), *([self.chain] if self.chain else [])):
            if child.is_running:
                child.kill()

    async def _end_leftovers(self) -> None:
        """Give grandchildren a moment to end, then report and kill those that have not."""
        until = time.monotonic() + GONE_SECONDS
        while left := processes_of(os.getpid()):
            _reap()
            if time.monotonic() > until:
                for pid, command in left:
                    self._outcome.faults.append(f"process {pid} was left over: {command}")
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                return
            await asyncio.sleep(0.1)

    def listen(self) -> None:
        """Forward the nodes' new events, and report nodes that have crashed."""
        for name, tail in self._tails.items():
            for event in tail.read():
                self._told(name, event)
        self._report_crashes()

    def check_chain(self) -> None:
        """Raises ConfigError when the chain has ended."""
        if self.chain is not None and not self.chain.is_running:
            raise ConfigError("the chain ended: " + " ".join(self.chain.last_lines()))

    @property
    def is_training_over(self) -> bool:
        """Whether a trainer has seen the run's end."""
        return self._picture.has_ended or any(self._children[name].code == 0 for name in self._trainers)

    def is_trainer_lost(self) -> bool:
        """Whether all trainers are gone, and the time to restart one by hand is over."""
        return not self._picture.has_ended and all(map(self._is_lost, self._trainers))

    def _is_lost(self, name: str) -> bool:
        child = self._children[name]
        if not child.has_crashed or self._has_restarted(name):
            return False
        if not child.was_killed and not self._picture.nodes[name].is_ready:
            return True  # it never came up, and would fail again
        return time.monotonic() - self._crashed[name][0] > RESTART_SECONDS

    def _has_restarted(self, name: str) -> bool:
        return name in self._crashed and self._picture.nodes[name].starts > self._crashed[name][1]

    def has_ended(self) -> bool:
        """Whether all nodes except the relays have exited."""
        if all(self._children[name].has_crashed for name in self._trainers) and not self._picture.has_ended:
            return False
        watched = [node.name for node in self._plan.nodes if node.role != "relay"]
        return all(self._children[name].code is not None for name in watched)

    def _report_crashes(self) -> None:
        for node in self._plan.nodes:
            child = self._children.get(node.name)
            if child is None or not child.has_crashed or node.name in self._crashed:
                continue
            self._crashed[node.name] = (time.monotonic(), self._picture.nodes[node.name].starts)
            if self.is_struck_out(node):
                self._say(f"{node.name} was struck out of the run and has left")
                continue
            if child.was_killed:  # by hand or by the OOM killer: the network should tolerate it
                self._outcome.notes.append(f"{node.name} {child.end_in_words} on the way")
            else:
                self._outcome.faults.append(f"{node.name} {child.end_in_words}")
            self._say(self._about_crash(node, child))

    def is_struck_out(self, node: NodePlan) -> bool:
        """Whether an adversary was struck out, as it should be."""
        said = " ".join(self._children[node.name].last_lines())
        return bool(node.adversary) and (node.key.node in self._picture.ejected or EJECTED_WORDS in said)

    def _about_crash(self, node: NodePlan, child: Child) -> str:
        tail = "".join(f"\n    {line}" for line in child.last_lines())
        last = f"; its output is {child.output}" if child.was_killed else f"; its last lines ({child.output}):{tail}"
        wait = ""
        if node.role == "trainer" and len(self._trainers) == 1:
            wait = f" within {RESTART_SECONDS:.0f} s: the run waits for it"
        elif node.role == "trainer":
            wait = " (another trainer takes over once the lease has run out)"
        return (
            f"{node.name} {child.end_in_words}{last}\n"
            f"start it again from another terminal{wait}:\n  {restart_command(node)}"
        )

    def state_of(self, node: NodePlan) -> str:
        """The state of a node in a word or two."""
        child = self._children.get(node.name)
        if child is None or (child.code is None and not child.is_running):
            return "not started"
        if node.key.node in self._picture.ejected:
            return "struck out"
        if self._has_restarted(node.name):
            return "restarted" if self._picture.nodes[node.name].is_ready else "restarting"
        if child.was_killed:
            return "killed"
        if child.has_crashed:
            return f"crashed ({child.code})"
        if child.code is not None:
            return "left"
        return "ready" if self._picture.nodes[node.name].is_ready else "starting"


def _reap() -> None:
    """Reap adopted orphans that ended; asyncio reaps our own children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
