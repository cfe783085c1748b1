"""A node that hangs records where, and survives. Each test runs in its own process, since a signal has one handler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUCK = """
import asyncio, threading, time
from pathlib import Path
from node.watchdog import Watchdog

def hang():
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        time.sleep(0.01)

def churn():
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        exec(compile("def f(n):\\n    return f(n - 1) if n else 0\\nf(50)", "made", "exec"), {{}})

async def main():
    watching = asyncio.create_task(Watchdog(Path("."), stuck=0.3).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    {what}
    await asyncio.sleep(1.2)
    watching.cancel()

asyncio.run(main())
"""
ASKED = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"


def run(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STUCK.format(what=what)],
        cwd=folder,
        env={"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_run__loop_that_stands_still_leaves_its_stacks_trn_08(tmp_path: Path) -> None:
    said = run(tmp_path, "hang()")
    assert "in hang" in (tmp_path / "stacks.txt").read_text()
    assert "stacks.written" in said.stdout


def test_run__one_hang_is_written_once(tmp_path: Path) -> None:
    run(tmp_path, "hang()")
    assert (tmp_path / "stacks.txt").read_text().count(" in hang\n") == 1


def test_run__busy_loop_lives_through_its_diagnosis__trn_08(tmp_path: Path) -> None:
    """The interpreter's own watchdog reads frames that change meanwhile: three seconds
    of this were enough for a crash."""
    run(tmp_path, "churn()")
    assert "in churn" in (tmp_path / "stacks.txt").read_text()


def test_run__asked_by_an_operator_it_goes_on(tmp_path: Path) -> None:
    run(tmp_path, ASKED)
    assert "in main" in (tmp_path / "stacks.txt").read_text()


def test_run__file_begins_anew_once_it_is_long(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_bytes(bytes(2**20))
    run(tmp_path, ASKED)
    assert (tmp_path / "stacks.txt").stat().st_size < 2**16


def test_run__folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").mkdir()
    assert "watchdog.off" in run(tmp_path, "pass").stdout
