"""Runs one untrusted Python program to its end, or to its limits, and returns the outcome.
Blocking: call it in a thread.

The kernel enforces the confinement, not Python: Landlock (no file but the standard library, read-only), seccomp (no
socket, no process, no signal to others) and resource limits; the time limit and the thread count are enforced from
outside. Where the kernel does not support both Landlock and seccomp, nothing is run.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import IO

from dht.errors import NodeError
from roles.sandbox.threads import ThreadCount, take_over

MAX_PROGRAM = 256 * 1024
MAX_INPUT = 4 * 2**20
KEPT_ERRORS = 2048
ROOT = str(Path(__file__).parents[2])
START = "import sys; sys.path.append(sys.argv.pop()); from roles.sandbox.confined import main; main()"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


class SandboxUnavailable(NodeError):
    """This machine cannot confine a program, so none is run."""


class Ending(StrEnum):
    """How a program ended."""

    DONE = "it ended by itself"
    FAILED = "it ended with an error"
    OUT_OF_TIME = "it ran past its time"
    FLOODED = "it wrote more than it may"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. Memory is address space, in bytes; output is standard output, in bytes. Threads are the
    total number it starts; a common idiom needs one, for a larger stack."""

    cpu_seconds: int = 4
    wall_seconds: float = 10.0
    memory: int = 512 * 2**20
    output: int = 64 * 1024
    threads: int = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended, and its output; of standard error only the last bytes."""

    ending: Ending
    output: bytes
    errors: str


def run_program(source: str, *, given: bytes = b"", limits: Limits | None = None) -> Outcome:
    """Run Python source with `given` as its standard input. Raises SandboxUnavailable; anything the program does is an
    outcome. Sources over 256 KiB and inputs over 4 MiB raise ValueError."""
    if (reason := why_unavailable()) is not None:
        raise SandboxUnavailable(reason)
    return _run(source, given, limits or Limits())


@cache
def why_unavailable() -> str | None:
    """The reason why this machine cannot confine programs, with the remedy; None when a trial program was confined."""
    if sys.platform != "linux":
        return "programs are only run where Linux can confine them: set this node up on Linux 5.13 or newer"
    trial = _run(TRIAL, b"", Limits(wall_seconds=30.0))
    if trial.ending is Ending.DONE and trial.output == b"held\n":
        return None
    why = trial.errors.strip().rpartition("\n")[2] or trial.ending.value
    return f"programs cannot be confined here ({why}): Linux 5.13 or newer with Landlock and seccomp is needed"


@cache
def why_threadless() -> str | None:
    """The reason why programs cannot start threads here. They can on other nodes, whose judgement must be the same.
    None when a trial program did, and was confined."""
    if (reason := why_unavailable()) is not None:
        return reason
    trial = _run(THREADED, b"", Limits(wall_seconds=30.0))
    if trial.ending is Ending.DONE:
        return None
    why = trial.errors.strip().rpartition("\n")[2] or trial.ending.value
    return f"programs cannot start threads here ({why}): a container's supervisor listens to their system calls; switch that off"


THREADED = """
import threading
thread = threading.Thread()
thread.start()
thread.join()
"""
TRIAL = """
import fcntl, os, socket
def is_refused(act):
    try:
        act()
    except OSError:
        return True
    return False
acts = (socket.socket, os.fork, lambda: open("/etc/passwd"), lambda: open("made", "w"), lambda: os.kill(1, 0),
        lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid()), lambda: fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC))
print("held" if all(map(is_refused, acts)) else "loose")
"""


def _run(source: str, given: bytes, limits: Limits) -> Outcome:
    program = source.encode("utf-8", "surrogatepass")
    if len(program) > MAX_PROGRAM or len(given) > MAX_INPUT:
        raise ValueError(f"a program has at most {MAX_PROGRAM} bytes, and its input {MAX_INPUT}")
    inward, outward = os.pipe()
    inside, outside = socket.socketpair()
    with outside, contextlib.closing(os.fdopen(outward, "wb")) as sink:
        try:
            process = _start(inward, inside.fileno(), limits)
        finally:
            os.close(inward)
            inside.close()
        with process:
            try:
                return _Conversation(process, sink, outside, program, given, limits).hold()
            finally:
                process.kill()


def _start(program: int, channel: int, limits: Limits) -> subprocess.Popen[bytes]:
    told = map(str, (program, channel, limits.memory, limits.cpu_seconds, os.getpid()))
    return subprocess.Popen(  # noqa: S603 - our own interpreter with our own arguments
        [sys.executable, "-s", "-S", "-P", "-B", "-c", START, *told, ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
        pass_fds=(program, channel),
        start_new_session=True,
    )


class _Conversation:
    """Feeds a process, reads its output and counts its threads, within limits of time and size."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sink: IO[bytes],
        channel: socket.socket,
        program: bytes,
        given: bytes,
        limits: Limits,
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - all three are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self._process, self._limits = process, limits
        self._waiting: dict[IO[bytes], memoryview] = {sink: memoryview(program), process.stdin: memoryview(given)}
        self._output, self._errors = bytearray(), bytearray()
        self._closing = contextlib.ExitStack()
        self._read_from = {process.stdout: self._output, process.stderr: self._errors}
        self._selector = selectors.DefaultSelector()
        for stream in self._waiting:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_WRITE, partial(self._feed, stream))
        for stream in self._read_from:
            self._selector.register(stream, selectors.EVENT_READ, partial(self._read, stream))
        self._selector.register(channel, selectors.EVENT_READ, partial(self._count_threads, channel))

    def hold(self) -> Outcome:
        deadline = time.monotonic() + self._limits.wall_seconds
        with self._selector, self._closing:
            while self._read_from:
                ready = self._selector.select(max(0.0, deadline - time.monotonic()))
                if not ready or time.monotonic() > deadline:
                    return self._outcome(Ending.OUT_OF_TIME)
                for key, _ in ready:
                    key.data()
                if len(self._output) > self._limits.output:
                    return self._outcome(Ending.FLOODED)
        try:
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self._outcome(Ending.OUT_OF_TIME)
        return self._outcome(_ending(status))

    def _read(self, stream: IO[bytes]) -> None:
        piece = os.read(stream.fileno(), 65536)
        self._read_from[stream].extend(piece)
        del self._errors[:-KEPT_ERRORS]
        if not piece:
            self._selector.unregister(stream)
            del self._read_from[stream]

    def _count_threads(self, channel: socket.socket) -> None:
        self._selector.unregister(channel)
        listener = take_over(channel)
        if listener is not None:
            count = ThreadCount(listener, self._limits.threads)
            close = self._closing.enter_context(contextlib.ExitStack())
            close.callback(os.close, listener)
            close.callback(self._selector.unregister, listener)
            self._selector.register(listener, selectors.EVENT_READ, lambda: None if count.answer() else close.close())

    def _feed(self, stream: IO[bytes]) -> None:
        left = self._waiting[stream]
        with contextlib.suppress(BrokenPipeError):
            left = left[os.write(stream.fileno(), left[:65536]) :] if left else left
            self._waiting[stream] = left
            if left:
                return
        self._selector.unregister(stream)
        with contextlib.suppress(BrokenPipeError):
            stream.close()

    def _outcome(self, ending: Ending) -> Outcome:
        return Outcome(ending, bytes(self._output[: self._limits.output]), self._errors.decode("utf-8", "replace"))


def _ending(status: int) -> Ending:
    if status == 0:
        return Ending.DONE
    # exceeding the hard limit on CPU time sends SIGKILL; nobody else may send one, and we have not
    return Ending.OUT_OF_TIME if status in (-signal.SIGXCPU, -signal.SIGKILL) else Ending.FAILED
