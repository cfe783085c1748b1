"""How a process ends: at once, although model work is under way that nothing can stop."""

from __future__ import annotations

import subprocess
import sys

HANGING = """
import asyncio, threading
from node.running import leave
from roles.compute import ComputeStuck, ComputeThread

async def run():
    compute = ComputeThread(patience=0.05)
    loading = asyncio.ensure_future(compute.run(compute.bounded, threading.Event().wait))
    try:
        await compute.watch()
    except ComputeStuck as error:
        print(error)

asyncio.run(run())
raise SystemExit(leave(1))
"""


def test_leave__work_that_hangs_does_not_hold_up_the_end__wgt_18() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "Start the node again" in ended.stdout
