"""No library leaves the process with a recursion limit at which a peer's nested text would crash it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["node.app", "node.actors", "ledger.devnet", "ledger.evm", "node.cli"])
def test_import__leaves_the_recursion_limit_as_it_was(module: str) -> None:
    nested = "import json\ntry: json.loads('[' * 10**6)\nexcept RecursionError: print('held')"
    code = f"import sys, {module}\nassert sys.getrecursionlimit() == 1000\n{nested}"
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert ran.stdout == "held\n", ran.stderr
