"""A process that has imported what every node needs, and forks into nodes on request: seven starts for the time of one.

python -m node.testnet.forkserver MODULE...

It imports these modules, then reads requests from standard input, one line of JSON each, and forks: `{"number": I,
"command": [..], "output": PATH}`, where the command is `python -m MODULE ARGUMENT..`. It replies `{"number": I, "pid": N}`
and, when that process has ended, `{"number": I, "code": C}`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import sys
from pathlib import Path
from typing import Any

from node.lifetime import FORKER_VARIABLE, die_with_parent


def main(modules: list[str]) -> None:
    """Import the modules, then serve until the input ends."""
    die_with_parent()
    os.environ[FORKER_VARIABLE] = str(os.getpid())
    answers = os.dup(1)
    os.dup2(2, 1)  # imported modules may print
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the garbage collector skips imported objects, so forks do not copy them
    if request := _serve(answers):
        _become(answers, **request)


def _serve(answers: int) -> dict[str, Any] | None:
    """Serve requests until the input ends. In a fork, returns the request it was forked for."""
    children: dict[int, int] = {}  # number of the request by process id
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector, open(0, "rb", buffering=0, closefd=False) as requests:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == woken:
                    os.read(woken, 4096)
                    _reap(children, answers, os.WNOHANG)
                elif not (line := requests.readline()):
                    _end(children, answers)
                    return None
                else:
                    request: dict[str, Any] = json.loads(line)
                    if not (pid := os.fork()):
                        return request
                    children[pid] = request["number"]


def _reap(children: dict[int, int], answers: int, flags: int = 0) -> None:
    """Report the children that have ended; without flags, wait for all."""
    while children and (ended := os.waitpid(-1, flags))[0]:
        _say(answers, number=children.pop(ended[0]), code=os.waitstatus_to_exitcode(ended[1]))


def _end(children: dict[int, int], answers: int) -> None:
    """Ask all children to end, once: a second SIGTERM, which our own death would send, ends a node on the spot."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for child in children:
        os.kill(child, signal.SIGTERM)
    _reap(children, answers)


def _say(answers: int, **answer: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the testnet has died
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _become(answers: int, number: int, command: list[str], output: str) -> None:
    """Become the process that this command would have started, in a session of its own."""
    os.setsid()
    _say(answers, number=number, pid=os.getpid())  # from now on it can be killed with everything it starts
    os.close(answers)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _redirect(output)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(Path(output).parent.name)  # for top and ps
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _redirect(output: str) -> None:
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for file, place in ((null, 0), (log, 1), (log, 2)):
        os.dup2(file, place)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    main(sys.argv[1:])
