"""Runs inside a `ConfinedFunction`. The keeper imports one function and gives up every right except starting
processes. For each call it starts one, which gives up that right too. So no call finds anything of another's:
whatever hostile text makes of a process ends with it, including threads. The keeper itself never examines a
call's arguments or answer."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

from roles.sandbox.confined import NOT_CONFINED, confine
from roles.sandbox.seccomp import Starts, forbid_new_privileges, restrict_calls

CALL = struct.Struct("=IId")
"""Bytes of arguments, maximum bytes of the answer, seconds."""
ANSWER = struct.Struct("=BI")
"""Whether the call finished, and the bytes of its answer or of the reason."""
OUT_OF_MEMORY = 126
"""Exit status of a call that ran out of memory."""


def main() -> None:
    """Arguments: `module:function`, warm-up calls as JSON, bytes of memory, the id of the process that started us, and
    what may be read besides the standard library."""
    place, warm, memory, parent, *readable = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the function prints is not an answer
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        _say(answers, True, _told(error))
        return
    try:
        confine(parent=int(parent), memory=int(memory), readable=readable, starts=Starts.PROCESSES)
    except OSError as error:
        os.write(2, f"cannot be confined: {error}".encode())
        os._exit(NOT_CONFINED)
    try:
        for arguments in json.loads(warm):
            function(*arguments)
    except (Exception, SystemExit) as error:
        _say(answers, True, _told(error))
        return
    gc.freeze()  # existing objects are not traversed, and so their pages not copied, in each call
    _say(answers, True, json.dumps({"value": "ready"}).encode())
    keeper = os.getpid()
    while header := _read(0, CALL.size):
        size, most, seconds = CALL.unpack(header)
        given = _read(0, size)
        _say(answers, *_serve(function, given, most, seconds, keeper, answers))


def _serve(
    function: Callable[..., Any], given: bytes, most: int, seconds: float, keeper: int, answers: int
) -> tuple[bool, bytes]:
    """Whether the call finished, and its answer or the reason why not."""
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        for inherited in (0, answers, source):
            os.close(inherited)
        _run(function, given, sink, seconds, keeper)
    os.close(sink)
    answer = _read(source, most + 1)
    os.close(source)
    _, status = os.waitpid(process, 0)  # a signal ends it when its time is up
    if status == signal.SIGALRM:
        return False, b"took too long"
    if len(answer) > most:
        return False, b"gave an answer without end"
    if status == OUT_OF_MEMORY << 8:
        return False, b"ran out of memory"
    return (True, answer) if status == 0 else (False, b"broke off: its process ended")


def _run(function: Callable[..., Any], given: bytes, sink: int, seconds: float, keeper: int) -> None:
    """Runs in the process of the call. Never returns."""
    status = 1
    try:
        forbid_new_privileges()
        if os.getppid() == keeper:  # otherwise the keeper ended before we asked to die with it
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            restrict_calls()
            _write(sink, _result(function, given))
            status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:
        os._exit(status)


def _result(function: Callable[..., Any], given: bytes) -> bytes:
    try:
        return json.dumps({"value": function(*json.loads(given))}).encode()
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # whatever hostile text makes of the function
        return _told(error)


def _told(error: BaseException) -> bytes:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode()


def _say(answers: int, is_complete: bool, answer: bytes) -> None:
    _write(answers, ANSWER.pack(is_complete, len(answer)) + answer)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while left:
            left = left[os.write(file, left) :]


def _read(file: int, size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    found = bytearray()
    while len(found) < size and (piece := os.read(file, min(size - len(found), 65536))):
        found += piece
    return bytes(found)


if __name__ == "__main__":
    main()
