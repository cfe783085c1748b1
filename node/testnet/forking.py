"""The testnet's side of the fork server (`forkserver`), and the processes that it forked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
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
        self._requests = 0
        self._asked: dict[int, asyncio.Future[Forked | None]] = {}  # by the number of the request
        self._forked: dict[int, Forked] = {}  # the same

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
        self._requests += 1
        request = {"number": self._requests, "command": list(command), "output": str(output)}
        asked: asyncio.Future[Forked | None] = asyncio.get_running_loop().create_future()
        self._asked[self._requests] = asked
        requests.write(json.dumps(request).encode() + b"\n")
        return await asked

    async def close(self) -> None:
        """End the server, and with it what it forked."""
        if self._server is None or self._server.stdin is None or self._reading is None:
            return
        self._server.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS if self._requests else 0):  # while it imports it hears nothing
                await asyncio.shield(self._reading)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._server.kill()
            await self._reading
        await self._server.wait()

    async def _read(self, answers: asyncio.StreamReader) -> None:
        while line := await answers.readline():
            said = json.loads(line)
            number = said["number"]
            if "pid" in said:
                self._forked[number] = forked = Forked(said["pid"])
                self._answer(number, forked)
            elif number in self._forked:
                self._forked.pop(number).end(said["code"])
            else:  # it ended before it could say which process it is
                self._answer(number, None)
        for number in list(self._asked):
            self._answer(number, None)
        for forked in self._forked.values():
            forked.end(-signal.SIGTERM)

    def _answer(self, number: int, forked: Forked | None) -> None:
        asked = self._asked.pop(number)
        if not asked.done():  # nobody waits any more for what is given up: it ends with the server
            asked.set_result(forked)
