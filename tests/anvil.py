"""Foundry's development chain, where it is installed: the ledger's tests run on it beside our own.

`INTELLECT_ANVIL` names the program, else it is looked for on PATH; `scripts/test` fetches a pinned one by npm.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ledger.evm import BALANCE, CHAIN_ID

WHY_NOT = "anvil is neither on PATH nor named by INTELLECT_ANVIL (scripts/test fetches it where there is npm)"
PR_SET_PDEATHSIG = 1
LISTENING = re.compile(r"^Listening on (127\.0\.0\.1:\d+)$")


def find_anvil() -> str | None:
    """The program; None where there is none."""
    return os.environ.get("INTELLECT_ANVIL") or shutil.which("anvil")


@contextlib.contextmanager
def running_anvil(program: str, funded: Sequence[str]) -> Iterator[str]:
    """A chain that makes a block for each transaction, and its URL. Ended on leaving."""
    arguments = [program, "--port", "0", "--chain-id", str(CHAIN_ID), "--accounts", "0", "--hardfork", "cancun"]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_end_with_parent
    )
    drain: threading.Thread | None = None
    try:
        url = f"http://{_address(process)}"
        # It stops when nobody reads what it says.
        drain = threading.Thread(target=lambda: deque(process.stdout or (), maxlen=0), daemon=True)
        drain.start()
        for address in funded:
            ask(url, "anvil_setBalance", address, hex(BALANCE))
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)
        if drain is not None:
            drain.join(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


_shared = contextlib.ExitStack()
_url: list[str] = []


def shared_anvil(funded: Sequence[str]) -> str:
    """The one chain of this session, started when it is first asked for; these addresses hold coins. Skips without one."""
    program = find_anvil()
    if program is None:
        pytest.skip(WHY_NOT)
    if not _url:
        _url.append(_shared.enter_context(running_anvil(program, ())))
        atexit.register(_shared.close)
    for address in funded:
        ask(_url[0], "anvil_setBalance", address, hex(BALANCE))
    return _url[0]


def ask(url: str, method: str, *parameters: object) -> Any:
    """Result of a JSON-RPC request, from a thread that may wait."""
    return ask_all(url, method, *parameters)["result"]


def ask_all(url: str, method: str, *parameters: object) -> dict[str, Any]:
    """The whole answer to a JSON-RPC request: `result` or `error`."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - a loopback address
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


def _end_with_parent() -> None:
    """A killed test run leaves no chain behind (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _address(process: subprocess.Popen[str]) -> str:
    seen: list[str] = []
    for line in process.stdout or ():
        seen.append(line)
        found = LISTENING.match(line.strip())
        if found:
            return found.group(1)
    raise RuntimeError(f"anvil does not start: {''.join(seen)[-500:]}")
