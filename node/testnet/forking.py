"""The testnet's side of the fork server (`forkserver`), and the processes that it forked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from node.testnet.processes import child_environment

MODULES = (
    *("node.commands.node", "node.app", "roles.worker", "roles.validator", "roles.trainer"),
    *("roles.inference.transformers_engine", "transformers.modeling_layers", "transformers.masking_utils"),
)
"""What nodes other than relays import: about 5 s of one core."""
CLOSE_SECONDS = 5.0


class Forked:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Wait for its end. Returns the exit status."""
        return await asyncio.shield(self._code)

    def end(self, code: int) -> None:
        """Record that it has ended."""
        if not self._code.done():
            self._code.set_result(code)


class ForkServer:
    """Starts nodes by forking a process that has everything they need imported already. `output`
    receives the server's messages."""

    def __init__(self, *, output: Path, modules: Sequence[str] = MODULES) -> None:
        self._output, self._modules = output, modules
        self._server: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: deque[asyncio.Future[Forked | None]] = deque()
        self._forked: dict[int, Forked] = {}

    async def open(self) -> None:
        """Start the server, which imports in the background. Where it is unavailable (it
        needs Linux) this does nothing."""
        if not sys.platform.startswith("linux"):
            return
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "node.testnet.forkserver", *self._modules),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env=child_environment(),
                start_new_session=True,
            )
        if self._server.stdout:
            self._reading = asyncio.create_task(self._read(self._server.stdout))

    async def start(self, command: Sequence[str], output: Path) -> Forked | None:
        """Start a process equivalent to `python -m MODULE ARGUMENT..`; None when there is no server to fork it."""
        requests = self._server.stdin if self._server else None
        if requests is None or self._reading is None or self._reading.done():
            return None
        asked: asyncio.Future[Forked | None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        requests.write(json.dumps({"command": list(command), "output": str(output)}).encode() + b"\n")
        return await asked

    async def close(self) -> None:
        """End the server, and with it what it forked."""
        if self._server is None or self._server.stdin is None or self._reading is None:
            return
        self._server.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._reading
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._server.kill()
        await self._server.wait()

    async def _read(self, answers: asyncio.StreamReader) -> None:
        while line := await answers.readline():
            said = json.loads(line)
            if "code" in said:
                self._forked.pop(said["pid"]).end(said["code"])
            elif "pid" in said:
                self._forked[said["pid"]] = forked = Forked(said["pid"])
                self._asked.popleft().set_result(forked)
        while self._asked:
            self._asked.popleft().set_result(None)
        for forked in self._forked.values():
            forked.end(-signal.SIGTERM)
