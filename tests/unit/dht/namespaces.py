"""Machines of one network in the kernel's network namespaces, each with its own IPv6 address, joined by bridges that
represent the two halves of the Internet. It creates interfaces, so it runs inside a namespace of its own:

unshare --user --map-root-user --net python -m tests.unit.dht.namespaces FOLDER [SECONDS apart]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dht.upkeep import REFRESH_SECONDS

PORT = 31330
PATIENCE = 40.0
ADDRESS_PATIENCE = 3 * REFRESH_SECONDS
"""libp2p checks its interfaces periodically, and we query libp2p periodically."""
HALVES = ("left", "right")


def ip(*words: str, pid: int | None = None) -> str:
    """Run `ip ..`, inside another process's namespace if its id is given."""
    inside = ["nsenter", "--net", "--target", str(pid)] if pid else []
    return subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True).stdout


@dataclass
class Machine:
    """A namespace with one node in it."""

    name: str
    number: int
    process: asyncio.subprocess.Process
    node: str = ""
    addresses: list[str] = field(default_factory=list)

    async def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command to the node. Returns its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next line from the node."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            answered: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return answered

    async def until_read(self, texts: set[str]) -> None:
        """Wait until the node reads all of these."""
        async with asyncio.timeout(PATIENCE):
            while not texts <= set((await self.ask(read=True)).get("rows", {}).values()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)

    async def until_reached_at(self, address: str) -> list[str]:
        """Wait until the node reports that it is reachable there. Returns how. The old address may remain for a
        while, since others observed it."""
        async with asyncio.timeout(ADDRESS_PATIENCE):
            while True:
                told: list[str] = (await self.ask(addresses=True))["addresses"]
                if ways := [way for way in told if f"/{address}/" in way]:
                    return ways
                await asyncio.sleep(0.2)

    async def until_published(self, text: str) -> None:
        """Publish, and wait until another peer is seen to hold the node's row."""
        async with asyncio.timeout(PATIENCE):
            while "done" not in await self.ask(publish=text):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)

    def listening(self) -> list[str]:
        """TCP ports that other machines can reach (not those on loopback), in hexadecimal."""
        lines = [
            line
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]
        ]
        loopback = ("0100007F", "00000000000000000000000001000000")
        places = [fields[1].split(":") for fields in map(str.split, lines) if fields[3] == "0A"]
        return [port for address, port in places if address not in loopback]


@dataclass
class Internet:
    """All machines."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    made: int = 1  # so that no address is used twice

    async def add(
        self, name: str, seeds: list[str], *, is_client: bool = False, is_everywhere: bool = False
    ) -> Machine:
        """Add a machine to the left half. Its node knows these addresses, and listens on the machine's
        own address, or on all it has."""
        number = self.made = self.made + 1
        address = f"fd00::{number:x}"
        own = f"/ip6/{'::' if is_everywhere else address}/tcp/{PORT + number}"
        listen = {"host_maddrs": [] if is_client else [own], "client_mode": is_client}
        options = {"initial_peers": seeds, **listen}
        arguments = [str(self.folder / name), json.dumps(options)]
        # waits for its interface before it starts
        script = f'read -r go; exec "{sys.executable}" -m tests.unit.dht.directory_process "$@"'
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "sh", "-c", script, "sh", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        machine = self.machines[name] = Machine(name, number, process)
        await self._plug(machine, address)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        told = await machine.answer()
        machine.node, machine.addresses = told["node"], told["addresses"]
        return machine

    async def _plug(self, machine: Machine, address: str) -> None:
        pid, cable = machine.process.pid, f"v{machine.number}"
        async with asyncio.timeout(PATIENCE):
            while _namespace(pid) == _namespace("self"):  # noqa: ASYNC110 - until `unshare` has happened
                await asyncio.sleep(0.01)
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.move(machine, HALVES[0])
        ip("link", "set", cable, "up")
        ip("link", "set", "lo", "up", pid=pid)
        ip("address", "add", f"{address}/64", "dev", "eth0", "nodad", pid=pid)
        ip("link", "set", "eth0", "up", pid=pid)

    def renumber(self, machine: Machine) -> str:
        """Replace a machine's address by another, as a provider does at night. Returns the new one."""
        number = self.made = self.made + 1
        ip("address", "add", f"fd00::{number:x}/64", "dev", "eth0", "nodad", pid=machine.process.pid)
        ip("address", "del", f"fd00::{machine.number:x}/64", "dev", "eth0", pid=machine.process.pid)
        return f"fd00::{number:x}"

    def move(self, machine: Machine, half: str) -> None:
        """Connect a machine to this half."""
        ip("link", "set", f"v{machine.number}", "master", half)

    async def remove(self, machine: Machine) -> None:
        """Kill -9 its node, and remove its interface."""
        machine.process.kill()
        await machine.process.wait()
        del self.machines[machine.name]


def _namespace(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


@asynccontextmanager
async def internet(folder: Path) -> AsyncIterator[Internet]:
    """Two empty halves."""
    for half in HALVES:
        ip("link", "add", half, "type", "bridge")
        ip("link", "set", half, "up")
    world = Internet(folder)
    try:
        yield world
    finally:
        for machine in world.machines.values():
            with contextlib.suppress(ProcessLookupError):
                machine.process.kill()
            await machine.process.wait()


async def play(folder: Path, *, seconds: float = 0.0) -> None:
    """A partition that heals, a worker without an inbound port, all seeds replaced, an address changed.

    Raises AssertionError or TimeoutError.
    """
    async with internet(folder) as world:
        one = await world.add("seed-1", [])
        two = await world.add("seed-2", one.addresses)
        seeds = [*one.addresses, *two.addresses]
        server, other = await world.add("server", seeds), await world.add("other", seeds)
        worker = await world.add("worker", seeds, is_client=True)
        await worker.until_published("worker before")
        await other.until_read({"worker before"})
        assert worker.listening() == [], "a worker needs an inbound port"
        assert server.listening()
        sys.stdout.write("nodes met over IPv6, the worker has no port open\n")
        await _part(world, (two, other, worker), (one, server), seconds)
        await _replace_seeds(world, (one, two), (server, other, worker))
        await _renumber(world, worker)


async def _part(world: Internet, leaving: tuple[Machine, ...], staying: tuple[Machine, ...], seconds: float) -> None:
    for machine in leaving:
        world.move(machine, "right")
    await asyncio.sleep(seconds)
    await leaving[1].until_published("right")
    await staying[1].until_published("left")
    assert "right" not in (await staying[1].ask(read=True)).get("rows", {}).values()
    for machine in leaving:
        world.move(machine, "left")
    began = asyncio.get_running_loop().time()
    for machine in (*leaving, *staying):
        await machine.until_read({"left", "right"})
    sys.stdout.write(f"the halves were one again after {asyncio.get_running_loop().time() - began:.1f} s\n")


async def _replace_seeds(world: Internet, old: tuple[Machine, ...], staying: tuple[Machine, ...]) -> None:
    server, other, worker = staying
    for machine in old:
        await world.remove(machine)
    new = [await world.add(f"new-{number}", server.addresses) for number in (1, 2)]
    late = await world.add("late", [address for machine in new for address in machine.addresses])
    await worker.until_published("worker after")
    for machine in (late, other):
        await machine.until_read({"worker after"})
    sys.stdout.write("all seeds were replaced, and a late node found the others by the new ones\n")


async def _renumber(world: Internet, worker: Machine) -> None:
    moving = await world.add("moving", world.machines["late"].addresses, is_everywhere=True)
    await moving.until_published("before the night")
    ways = await moving.until_reached_at(world.renumber(moving))
    newcomer = await world.add("newcomer", ways)
    await newcomer.until_published("found it")
    await moving.until_published("after the night")
    for machine in (worker, newcomer):
        await machine.until_read({"after the night", "found it"})
    sys.stdout.write("a node's address changed: it says so, and is found at the new one\n")


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), seconds=float(sys.argv[2]) if sys.argv[2:] else 0.0))
