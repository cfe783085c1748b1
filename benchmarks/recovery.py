"""Duration of each outage: what is killed -9 is restarted at once (p2pd by its node), and the work continues.

python -m benchmarks.recovery [--quick] [--only WORD ..]

A network of real processes on this machine: two trainers, two workers, three validators, two relays (its only seeds), a
development chain with a block a second. Printed are seconds since the kill, the median of three kills (`--quick`: one kill of
three kinds, in a network of one trainer, worker, validator and relay).
The fail-over of the leading trainer, which needs a network of its own, is `python -m benchmarks.failover`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.processes import daemon_of
from benchmarks.command import finish, run
from benchmarks.failover import Network
from node.lifetime import adopt_orphans
from node.testnet.plan import TestnetOptions, free_ports, make_plan
from node.testnet.processes import Child, stop_all
from node.testnet.setup import prepare_run, start_chain

SIZES = {"workers": 2, "validators": 3, "relays": 2, "trainers": 2, "steps": 100_000}
QUICK_SIZES = {**SIZES, "workers": 1, "validators": 1, "relays": 1, "trainers": 1}
SETTLED_STEP = 4
REPEATS = 3
CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Death:
    """What is killed, and the events to wait for afterwards, in order: (node, event, fields it must have)."""

    title: str
    victims: tuple[str, ...]
    signs: tuple[tuple[str, str, Mapping[str, object]], ...]
    is_daemon: bool = False


def _sign(node: str, event: str, **fields: object) -> tuple[str, str, Mapping[str, object]]:
    return node, event, fields


ONLINE = {"state": "online"}
DEATHS = (
    Death(
        "p2pd of a validator",
        ("validator-1",),
        (_sign("validator-1", "directory.state_changed", **ONLINE), _sign("validator-1", "verdict.signed")),
        is_daemon=True,
    ),
    Death(
        "p2pd of both seeds",
        ("relay-1", "relay-2"),
        (_sign("relay-1", "directory.state_changed", **ONLINE), _sign("relay-2", "directory.state_changed", **ONLINE)),
        is_daemon=True,
    ),
    Death("worker", ("worker-1",), (_sign("worker-1", "node.ready"), _sign("worker-1", "submission.accepted"))),
    Death("relay", ("relay-1",), (_sign("relay-1", "node.ready"), _sign("relay-1", "manifest.accepted"))),
    Death("validator", ("validator-1",), (_sign("validator-1", "node.ready"), _sign("validator-1", "verdict.signed"))),
    Death("trainer", ("trainer",), (_sign("trainer", "node.ready"), _sign("trainer", "checkpoint.committed"))),
    Death("chain", (CHAIN,), (_sign("trainer", "checkpoint.committed"),)),
    Death(
        "both seeds (relays)",
        ("relay-1", "relay-2"),
        (
            _sign("relay-1", "node.ready"),
            _sign("relay-2", "node.ready"),
            _sign("worker-1", "submission.sent"),
            _sign("trainer", "checkpoint.committed"),
        ),
    ),
)

QUICK_DEATHS = ("p2pd of a validator", "worker", "chain")


@dataclass
class Ward(Network):
    """The network, including its chain."""

    chain: Child | None = None
    times: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    async def kill(self, name: str, *, is_daemon: bool) -> None:
        """Kill -9 a process, or only its p2pd."""
        child = self.chain if name == CHAIN else self.children[name]
        assert child is not None
        if is_daemon:
            pid = daemon_of(child.pid)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        child.kill()
        await child.wait()

    async def restart(self, name: str) -> None:
        """Start it again."""
        if name == CHAIN and self.chain is not None:
            await self.chain.start()
        else:
            await self.start(name)

    async def suffer(self, death: Death) -> dict[str, float]:
        """Seconds from the kill to each event waited for."""
        killed = time.time()
        for name in death.victims:
            await self.kill(name, is_daemon=death.is_daemon)
        for name in () if death.is_daemon else death.victims:
            await self.restart(name)
        return {
            f"{node} {event}": await self.wait_for(node, event, since=killed, where=where) - killed
            for node, event, where in death.signs
        }


async def measure(
    folder: Path, deaths: Sequence[Death], *, sizes: Mapping[str, int], repeats: int
) -> dict[str, list[dict[str, float]]]:
    """Every death so often, with the network at work again in between."""
    options = TestnetOptions(directory=folder / "net", draft=_draft(folder), **sizes)  # type: ignore[arg-type]
    options.directory.mkdir()
    network = Ward(make_plan(options))
    async with AsyncExitStack() as stack:
        chain, rpc = await start_chain(network.plan, free_ports(1)[0])
        network.chain = chain
        stack.push_async_callback(chain.stop)
        await prepare_run(network.plan, options, rpc)
        stack.push_async_callback(lambda: stop_all(network.children.values()))
        for node in network.plan.nodes:
            await network.start(node.name)
        await network.wait_for("trainer", "checkpoint.committed", step=SETTLED_STEP)
        for death in deaths:
            for _ in range(repeats):
                network.times.setdefault(death.title, []).append(await network.suffer(death))
                await network.wait_for("trainer", "checkpoint.committed", since=time.time())
            print(_line(death.title, network.times[death.title]), flush=True)
    return network.times


def _line(title: str, times: Sequence[Mapping[str, float]]) -> str:
    signs = [f"{statistics.median(run[sign] for run in times):.1f} {sign}" for sign in times[0]]
    return f"| {title} | {len(times)} | {', '.join(signs)} |"


def _draft(folder: Path) -> Path:
    """The testnet's own draft, with a policy that hardly learns and a lease longer than any restart."""
    text = (Path(__file__).parents[1] / "node" / "testnet" / "run.toml").read_text()
    text = text.replace('learning_rate = "0.0001"', 'learning_rate = "0.00000001"')
    path = folder / "draft.toml"
    path.write_text(f"{text}\n[terms]\nlease_seconds = 600\n")
    return path


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print a table, print the JSON line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description="Seconds from each death to work again."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a network of one each, and one death of its validator's p2pd, worker and chain",
    )
    parser.add_argument("--only", nargs="+", metavar="WORD", help="deaths whose title has one of these words")
    options = parser.parse_args(words)
    known = [death for death in DEATHS if death.title in QUICK_DEATHS] if options.quick else DEATHS
    deaths = [death for death in known if not options.only or any(word in death.title for word in options.only)]
    if not deaths:
        parser.error(f"--only names none of these: {', '.join(death.title for death in known)}")
    repeats = 1 if options.quick else REPEATS
    adopt_orphans()
    print("| killed | times | seconds to |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        times = asyncio.run(
            measure(Path(folder), deaths, sizes=QUICK_SIZES if options.quick else SIZES, repeats=repeats)
        )
    medians = {
        title: {sign: round(statistics.median(run[sign] for run in runs), 2) for sign in runs[0]}
        for title, runs in times.items()
    }
    finish("recovery", repeats=repeats, seconds=medians)


if __name__ == "__main__":
    run(main)
