"""Child processes that communicate in lines of JSON, and end with the block that started them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.command import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 300.0
Said = dict[str, Any]


class Child:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def cpu(self) -> float:
        """CPU seconds since its start, user and kernel, including children it has waited for."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def tell(self, line: str = "") -> None:
        """Write one line to its stdin."""
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")

    async def hear(self, event: str) -> Said:
        """Its next line of this event. Raises BenchmarkError when it ends before, TimeoutError after five minutes."""
        if self._process.stdout is None:
            raise BenchmarkError("the process has no output")
        async with asyncio.timeout(PATIENCE):
            while line := await self._process.stdout.readline():
                if line.startswith(b"{"):
                    said: Said = json.loads(line)
                    if said.get("event") == event:
                        return said
        raise BenchmarkError(f"a process ended before it said {event!r}")

    async def stop(self) -> Said:
        """Request its resource usage."""
        self.tell()
        return await self.hear("spent")


@asynccontextmanager
async def child(arguments: Sequence[str], *, quiet: bool = False) -> AsyncIterator[Child]:
    """Start one; it is killed at the end if still alive."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if quiet else None,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def node(**config: object) -> list[str]:
    """The command line of one of our nodes."""
    return [sys.executable, "-m", "benchmarks.shardcast.node", json.dumps(config)]
