"""The testnet's child processes: started in sessions of their own, stopped in order, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from node.lifetime import PARENT_VARIABLE

TAIL_LINES = 6
TAIL_BYTES = 16 * 1024
STOP_SECONDS = 15.0
"""Timeout of an ordered shutdown: OFFLINE row, p2pd, files."""
GONE_SECONDS = 5.0
"""How long the system may take to clean up a killed process."""


def child_environment() -> dict[str, str]:
    """Environment of a child: one thread for numerics (nine processes share the machine), no
    proxies, and it ends when we die."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTELLECT_NODE_")}
    own = {
        PARENT_VARIABLE: str(os.getpid()),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return inherited | own


def node_command(*arguments: str) -> list[str]:
    """The command line of an `intellect-node` with this interpreter."""
    return [sys.executable, "-m", "node", *arguments]


class Process(Protocol):
    """A started process, by asyncio or by a fork (`forking`)."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""

    async def wait(self) -> int:
        """Wait for its end. Returns the exit status."""


class Forks(Protocol):
    """A fork server."""

    async def start(self, command: Sequence[str], output: Path) -> Process | None:
        """Start a process equivalent to `python -m MODULE ARGUMENT..`; None when there is no server to fork it."""


class Child:
    """One process, with its output in a file of its own. Forked if `forks` is given."""

    def __init__(self, name: str, command: Sequence[str], *, output: Path, forks: Forks | None = None) -> None:
        self.name, self._forks = name, forks
        self.command = tuple(command)
        self.output = output
        self._process: Process | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int:
        """Its process id. Raises ValueError before the start."""
        if self._process is None:
            raise ValueError(f"{self.name} was not started")
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs, and before it is started."""
        return self._process.returncode if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_crashed(self) -> bool:
        """Whether it ended with an unrequested failure."""
        return self.code not in (None, 0) and not self._is_stopping

    @property
    def was_killed(self) -> bool:
        """Whether somebody else ended it, by a signal that a fault of its own would not raise."""
        return self.has_crashed and self.code in (-signal.SIGKILL, -signal.SIGTERM)

    @property
    def end_in_words(self) -> str:
        """How it ended: `was killed (SIGKILL)`, `ended with code 1`."""
        if self.code is not None and self.code < 0:
            name = signal.Signals(-self.code).name
            return f"was killed ({name})" if self.was_killed else f"crashed ({name})"
        return f"ended with code {self.code}"

    async def start(self) -> None:
        """Start it in a session of its own, so that the terminal's Ctrl-C reaches only us."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._is_stopping = False
        forked = await self._forks.start(self.command, self.output) if self._forks else None
        self._process = forked or await self._execute()

    async def _execute(self) -> Process:
        with self.output.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(),
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Wait for its end. Returns the exit status."""
        if self._process is None:
            raise ValueError(f"{self.name} was not started")
        return await self._process.wait()

    async def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, wait, then kill it. Processes that it started (p2pd) end with its session."""
        if self._process is None:
            return
        self._is_stopping = True
        if self.is_running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Kill it and its session at once."""
        self._is_stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def last_lines(self, count: int = TAIL_LINES) -> list[str]:
        """The end of its output."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()[-count:]
        except OSError:
            return []


async def stop_all(children: Iterable[Child]) -> None:
    """Stop several at once."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.stop())


def processes_of(parent: int) -> list[tuple[int, str]]:
    """Processes that a testnet with this id started, directly or not, found by the mark in
    their environment (Linux only).

    A node added by hand from another terminal has no such mark (`guests_in`).
    """
    mark, found = f"{PARENT_VARIABLE}={parent}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                found.append((int(entry.name), command[:120]))
    return found


def remove_traces(pids: Collection[int], folder: Path | None = None) -> None:
    """Remove what killed nodes left behind: their p2pd sockets, and the lock files of their ports."""
    place = folder or Path(tempfile.gettempdir())
    for path in (*place.glob("intellect-node-*.sock"), *place.glob("intellect-node-*.lock")):
        with contextlib.suppress(OSError, ValueError):
            owner = path.name.split("-")[2] if path.suffix == ".sock" else path.read_text()[:16]
            if int(owner) in pids:
                path.unlink()


def guests_in(directory: Path) -> list[int]:
    """Processes of nodes with data folders in here that we did not start: somebody added them by hand."""
    found: list[int] = []
    for path in directory.glob("*/status.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads(path.read_text())["pid"])
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            is_ours = f"{PARENT_VARIABLE}={os.getpid()}".encode() in environment
            if not is_ours and _has_open(pid, path.parent):
                found.append(pid)
    return found


def _has_open(pid: int, folder: Path) -> bool:
    """Whether a process has a file in a folder open. A process that merely reuses the id of a dead node does not."""
    inside = folder.resolve()
    return any(Path(os.readlink(place)).is_relative_to(inside) for place in Path(f"/proc/{pid}/fd").iterdir())


async def end_guests(directory: Path, *, seconds: float = STOP_SECONDS) -> None:
    """Ask the nodes started by hand in here to end, wait, then kill them."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, GONE_SECONDS)):
        until = time.monotonic() + patience
        for pid in guests_in(directory):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while guests_in(directory) and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.1)
