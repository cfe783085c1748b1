"""How long a run stands still when its leading trainer is killed -9: until it is restarted, or a stand-by leads.

    python -m benchmarks.failover [--lease SECONDS] [--quick]

A network of real processes on this machine: two trainers, one worker, one validator, one relay, and a development chain
with a block per second. Restart: the killed leader is restarted at once. Fail-over: it is not; the lease runs out, the
lapse is reported, and three blocks later the other trainer leads. Prints seconds since the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import count, finish, run
from node.lifetime import adopt_orphans
from node.testnet.events import Event, EventTail
from node.testnet.plan import TestnetOptions, TestnetPlan, free_ports, make_plan
from node.testnet.processes import Child, stop_all
from node.testnet.setup import node_child, prepare_run, start_chain

PATIENCE = 300.0
SETTLED_STEP = 6
"""The leader is killed once this checkpoint is committed; by then its optimizer's state is on the relays."""


@dataclass
class Network:
    """The processes, and their events so far."""

    plan: TestnetPlan
    children: dict[str, Child] = field(default_factory=dict)
    tails: dict[str, EventTail] = field(default_factory=dict)
    said: dict[str, list[Event]] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start or restart a node."""
        node = next(node for node in self.plan.nodes if node.name == name)
        self.children[name] = node_child(node)
        await self.children[name].start()

    async def wait_for(
        self, name: str, event: str, *, since: float = 0.0, step: int = 0, where: Mapping[str, object] | None = None
    ) -> float:
        """The time of a node's first such event after `since`, at this step or later and with these
        fields. Raises TimeoutError."""
        node = next(node for node in self.plan.nodes if node.name == name)
        tail = self.tails.setdefault(name, EventTail(node.events_file))
        said = self.said.setdefault(name, [])
        async with asyncio.timeout(PATIENCE):
            while True:
                said += tail.read()
                for item in said:
                    if item["event"] == event and item["ts"] > since and item.get("step", step) >= step:
                        if all(item.get(field) == value for field, value in (where or {}).items()):
                            return float(item["ts"])
                await asyncio.sleep(0.05)


async def measure(folder: Path, *, lease: int, restarts: bool) -> dict[str, float]:
    """Kill a network's leader. Returns the seconds from then until each subsequent event."""
    draft = folder / "draft.toml"
    draft.write_text(f"{built_in_draft()}\n[terms]\nlease_seconds = {lease}\n")
    sizes = {"workers": 1, "validators": 1, "relays": 1, "trainers": 2, "steps": 1000}
    options = TestnetOptions(directory=folder / "net", draft=draft, **sizes)  # type: ignore[arg-type]
    options.directory.mkdir()
    network = Network(make_plan(options))
    async with AsyncExitStack() as stack:
        chain, rpc = await start_chain(network.plan, free_ports(1)[0])
        stack.push_async_callback(chain.stop)
        await prepare_run(network.plan, options, rpc)
        stack.push_async_callback(lambda: stop_all(network.children.values()))
        for node in network.plan.nodes:
            await network.start(node.name)
        await network.wait_for("trainer", "checkpoint.committed", step=SETTLED_STEP)
        await network.wait_for("trainer-2", "weights.fetched")
        network.children["trainer"].kill()
        killed = time.time()
        name, path = ("trainer", ["node.ready"]) if restarts else ("trainer-2", ["lease.lapsed", "lease.taken_over"])
        if restarts:
            await network.start("trainer")
        path += ["trainer.resumed", "step.opened", "checkpoint.committed"]
        return {event: await network.wait_for(name, event, since=killed) - killed for event in path}


def built_in_draft() -> str:
    """The testnet's own draft of a run, without its terms."""
    return (Path(__file__).parents[1] / "node" / "testnet" / "run.toml").read_text()


def main(words: Sequence[str] | None = None) -> None:
    """Measure both, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover",
        description="Seconds a run stands still when its leading trainer is killed.",
    )
    parser.add_argument("--lease", type=count, default=20, help="seconds of the lease")
    parser.add_argument("--quick", action="store_true", help="the restart only")
    options = parser.parse_args(words)
    lease, found = options.lease, {}
    adopt_orphans()
    for title, restarts in (("restart", True), (f"fail-over, lease {lease} s", False))[: 1 if options.quick else 2]:
        with tempfile.TemporaryDirectory() as folder:
            times = asyncio.run(measure(Path(folder), lease=lease, restarts=restarts))
        print(f"{title}: " + ", ".join(f"{event} {seconds:.1f}" for event, seconds in times.items()), flush=True)
        found["restart" if restarts else "failover"] = {event: round(seconds, 2) for event, seconds in times.items()}
    finish("failover", lease=lease, **found)


if __name__ == "__main__":
    run(main)
