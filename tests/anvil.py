"""Foundry's development chain, where it is installed. The ledger's tests run on it as well as on our own.

`INTELLECT_ANVIL` names the program; otherwise it is looked for on PATH. `scripts/test` fetches a pinned one with npm.
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
    """The program; None where it is not installed."""
    return os.environ.get("INTELLECT_ANVIL") or shutil.which("anvil")


@contextlib.contextmanager
def running_anvil(program: str, funded: Sequence[str]) -> Iterator[str]:
    """Run a chain that makes a block for each transaction; yields its URL."""
    arguments = [program, "--port", "0", "--chain-id", str(CHAIN_ID), "--accounts", "0", "--hardfork", "cancun"]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_end_with_parent
    )
    drain: threading.Thread | None = None
    try:
        url = f"http://{_address(process)}"
        # Drain its output, or it blocks.
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
    """The one chain of this session, started on first use; these addresses hold coins. Skips the
    test where anvil is missing."""
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
    """Result of a JSON-RPC request, for threads that may block."""
    return ask_all(url, method, *parameters)["result"]


def ask_all(url: str, method: str, *parameters: object) -> dict[str, Any]:
    """The complete response to a JSON-RPC request: `result` or `error`."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - a loopback address
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


def _end_with_parent() -> None:
    """Make the chain end when the test run is killed (Linux)."""
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
