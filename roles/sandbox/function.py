"""One function of an installed module, called on text that nobody trusts: in a confined process that is kept, and replaced
when a call takes too long or breaks it. Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from typing import Any

from dht.errors import NodeError
from roles.sandbox.program import ENVIRONMENT, ROOT, SandboxUnavailable, why_unavailable

START = "import sys; sys.path.append(sys.argv.pop()); from roles.sandbox.served import main; main()"
MAX_CALL = 2**20
MAX_ANSWER = 16 * 2**20
START_SECONDS = 120.0
"""For the imports: sympy takes a second on an idle machine, a loaded one has many at once."""


class CallFailed(NodeError):
    """The function raised, or what it answered is of no use."""


class CallBroken(NodeError):
    """The function ran past its time or its memory: on another machine it might have come to an end."""


class ConfinedFunction:
    """`module:function` in a process without network, files or rights; arguments and result are JSON values."""

    def __init__(self, place: str, *, seconds: float = 5.0, memory: int = 2**30) -> None:
        self.place = place
        self._seconds, self._memory = seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, seconds: float | None = None) -> Any:
        """The function's result. Raises CallFailed, CallBroken, or SandboxUnavailable where nothing can be confined."""
        call = json.dumps(arguments).encode()
        if len(call) > MAX_CALL:
            raise CallFailed(f"{self.place}: arguments of more than {MAX_CALL} bytes")
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._stop()
            process = self._process or self._start()
            try:
                return self._ask(process, call + b"\n", seconds or self._seconds)
            except CallBroken:
                self._stop()
                raise

    def close(self) -> None:
        """End the process. The next call starts another."""
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        if (reason := why_unavailable()) is not None:
            raise SandboxUnavailable(reason)
        libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        told = self.place, str(self._memory), str(os.getpid())
        command = [sys.executable, "-s", "-P", "-B", "-c", START, *told, *libraries, ROOT, ROOT]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter with our own arguments
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process)  # for those who forget to close
        try:
            self._ask(self._process, b"", START_SECONDS)
        except NodeError:
            self._stop()
            raise
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], call: bytes, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):
            _write(process, call, deadline)
        answer = self._read(process, deadline)
        if "value" not in answer:
            raise CallFailed(f"{self.place}: {answer.get('error', 'no answer')}")
        return answer["value"]

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
        assert process.stdout is not None  # noqa: S101 - a pipe
        line = bytearray()
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise CallBroken(f"{self.place} took too long")
            piece = process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not piece or len(line) + len(piece) > MAX_ANSWER:
                self._stop()
                raise CallBroken(f"{self.place}: {'its process ended' if not piece else 'an answer without end'}")
            line += piece
        return _parse(bytes(line))

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:
        pass  # closes the pipes and waits


def _write(process: subprocess.Popen[bytes], call: bytes, deadline: float) -> None:
    """A process that does not read must not hold us: what fits into the pipe goes at once, the rest as it takes it."""
    assert process.stdin is not None  # noqa: S101 - a pipe
    left = memoryview(call)
    while left:
        if not select.select([], [process.stdin], [], max(0.0, deadline - time.monotonic()))[1]:
            raise CallBroken("the process does not take its arguments")
        left = left[process.stdin.raw.write(left[: select.PIPE_BUF]) :]  # type: ignore[attr-defined]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise CallFailed("an answer that is no JSON") from error
    return answer if isinstance(answer, dict) else {}
