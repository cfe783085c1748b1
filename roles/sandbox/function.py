"""Calls one function of an installed module on untrusted text. Each call runs in a confined process of its own, forked
from a keeper process that has imported what it needs. Blocking: call it in a thread."""

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
from collections.abc import Sequence
from typing import Any

from dht.errors import NodeError
from roles.sandbox.program import ENVIRONMENT, ROOT, SandboxUnavailable, why_unavailable
from roles.sandbox.served import ANSWER, CALL

START = "import sys; sys.path.append(sys.argv.pop()); from roles.sandbox.served import main; main()"
MAX_CALL = 2**20
MAX_ANSWER = 2**20
MAX_PAGE = 16 * 2**20
"""Maximum bytes of the answer to a call whose arguments are ours."""
START_SECONDS = 120.0
"""Time for the imports: sympy takes a second on an idle machine, but a loaded one may run many at once."""
GRACE = 2.0
"""A call is ended from inside when its time is up. One that evades that is ended this much
later, with the keeper process."""
THREADLESS = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}


class CallFailed(NodeError):
    """The function raised, or its answer is unusable."""


class CallBroken(NodeError):
    """The function exceeded its time or memory; on another machine it might have finished."""


class ConfinedFunction:
    """`module:function` in processes without network, files or rights; arguments and result are JSON values.

    `warm`: arguments of calls made in the keeper process, for what they leave in its caches. They
    must be ours, not a peer's.
    """

    def __init__(
        self, place: str, *, seconds: float = 5.0, memory: int = 2**30, warm: Sequence[Sequence[Any]] = ()
    ) -> None:
        self.place = place
        self._seconds, self._memory, self._warm = seconds, memory, json.dumps(warm)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, seconds: float | None = None, most: int = MAX_ANSWER) -> Any:
        """The function's result, of at most `most` bytes. Raises CallFailed, CallBroken, or SandboxUnavailable where
        nothing can be confined."""
        call = json.dumps(arguments).encode()
        if len(call) > MAX_CALL:
            raise CallFailed(f"{self.place}: arguments of more than {MAX_CALL} bytes")
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._stop()
            if self._process is None:
                self._start()
            seconds = seconds or self._seconds
            return self._ask(CALL.pack(len(call), most, seconds) + call, seconds + GRACE)

    def close(self) -> None:
        """End the process. The next call starts another."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        if (reason := why_unavailable()) is not None:
            raise SandboxUnavailable(reason)
        libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        told = self.place, self._warm, str(self._memory), str(os.getpid())
        command = [sys.executable, "-s", "-P", "-B", "-c", START, *told, *libraries, ROOT, ROOT]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter with our own arguments
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT | THREADLESS,
            cwd="/",
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process)  # for callers that forget to close
        try:
            self._ask(b"", START_SECONDS)
        except NodeError:
            self._stop()
            raise

    def _ask(self, call: bytes, seconds: float) -> Any:
        assert self._process is not None  # noqa: S101 - it has been started
        try:
            is_complete, said = _exchange(self._process, call, time.monotonic() + seconds)
        except CallBroken as error:
            self._stop()
            raise CallBroken(f"{self.place} {error}") from error
        if not is_complete:
            raise CallBroken(f"{self.place} {said.decode()}")
        answer = _parse(said)
        if "value" not in answer:
            reason = answer.get("error")
            raise CallFailed(f"{self.place}: {reason[:500] if isinstance(reason, str) else 'no answer'}")
        return answer["value"]

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:
        pass  # closes the pipes and waits


def _exchange(process: subprocess.Popen[bytes], call: bytes, deadline: float) -> tuple[bool, bytes]:
    """Whether the call finished, and its answer. Raises CallBroken when the process is no longer usable."""
    with contextlib.suppress(BrokenPipeError):
        _write(process, call, deadline)
    is_complete, size = ANSWER.unpack(_read(process, ANSWER.size, deadline))
    return is_complete, _read(process, size, deadline)


def _write(process: subprocess.Popen[bytes], call: bytes, deadline: float) -> None:
    """Write without blocking on a process that does not read: what fits into the pipe goes at
    once, the rest as it is read."""
    assert process.stdin is not None  # noqa: S101 - a pipe
    left = memoryview(call)
    while left:
        if not select.select([], [process.stdin], [], max(0.0, deadline - time.monotonic()))[1]:
            raise CallBroken("does not take its arguments")
        left = left[process.stdin.raw.write(left[: select.PIPE_BUF]) :]  # type: ignore[attr-defined]


def _read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 - a pipe
    found = bytearray()
    while len(found) < size:
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise CallBroken("took too long")
        piece = os.read(process.stdout.fileno(), size - len(found))
        if not piece:
            raise CallBroken("broke off: its process ended")
        found += piece
    return bytes(found)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:  # text that became code may print anything
        raise CallFailed("an answer that is no JSON") from error
    return answer if isinstance(answer, dict) else {}
