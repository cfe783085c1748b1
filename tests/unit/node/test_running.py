"""A process ends at once, even during model work that cannot be stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
import structlog

from node.errors import UsageError
from node.running import StopSignal, said_when_slow, until_stopped

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


async def test_until_stopped__what_fails_by_itself_is_raised_and_said_by_who_catches_it() -> None:
    async def work() -> None:
        raise UsageError("no run is named")

    with structlog.testing.capture_logs() as log, pytest.raises(UsageError):
        await until_stopped(work(), StopSignal(), seconds=5.0)
    assert log == []


async def test_until_stopped__what_fails_in_an_ordered_end_is_said() -> None:
    stop = StopSignal()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the last row was not written")

    asyncio.get_running_loop().call_soon(stop.event.set)
    with structlog.testing.capture_logs() as log:
        assert not await until_stopped(work(), stop, seconds=5.0)
    assert [(event["event"], event["why"]) for event in log] == [
        ("shutdown.failed", "OSError: the last row was not written")
    ]


def test_receive__a_signal_that_comes_twice_at_once_is_one() -> None:
    stop, hurried = StopSignal(clock=iter([0.0, 0.1, 2.0]).__next__), []
    stop.hurry = lambda: hurried.append("at once")
    stop.receive(signal.SIGTERM)
    stop.receive(signal.SIGTERM)
    assert (stop.event.is_set(), hurried) == (True, [])
    stop.receive(signal.SIGTERM)
    assert hurried == ["at once"]


async def test_said_when_slow__what_is_waited_for_and_nothing_of_what_is_quick() -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    with said_when_slow("looking for the quick", seconds=60.0, say=said.put_nowait):
        pass
    with said_when_slow("looking for the run", seconds=0.0, say=said.put_nowait):
        assert await asyncio.wait_for(said.get(), 10) == "looking for the run"
    assert said.empty()
