"""Children of a testnet: how they ended, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from node.lifetime import PARENT_VARIABLE
from node.testnet.processes import Child, guests_in, remove_traces

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


async def test_child__killed_by_somebody_else_is_told_apart_from_a_crash(tmp_path: Path) -> None:
    killed, crashed = (
        Child("a", SLEEP, output=tmp_path / "a"),
        Child("b", [sys.executable, "-c", "exit(3)"], output=tmp_path / "b"),
    )
    await killed.start()
    await crashed.start()
    os.kill(killed.pid, signal.SIGKILL)
    await killed.wait()
    await crashed.wait()
    assert (killed.was_killed, killed.end_in_words) == (True, "was killed (SIGKILL)")
    assert (crashed.was_killed, crashed.end_in_words) == (False, "ended with code 3")


def test_remove_traces__only_those_of_our_own(tmp_path: Path) -> None:
    for name, text in (
        ("77-p2pd-x.sock", ""),
        ("78-p2pd-x.sock", ""),
        ("0-port-tcp-1.lock", "77"),
        ("0-port-tcp-2.lock", "78"),
    ):
        (tmp_path / f"intellect-node-{name}").write_text(text)
    remove_traces([77], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "intellect-node-0-port-tcp-2.lock",
        "intellect-node-78-p2pd-x.sock",
    ]


def test_guests_in__nodes_started_by_hand(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    marks = {"guest": bare, "ours": bare | {PARENT_VARIABLE: str(os.getpid())}}
    running = {
        name: subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE) for name, environment in marks.items()
    }
    try:
        for name, process in running.items():
            assert process.stdout is not None
            process.stdout.readline()
            (tmp_path / name).mkdir()
            (tmp_path / name / "status.json").write_text(json.dumps({"pid": process.pid}))
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone" / "status.json").write_text(json.dumps({"pid": 2**22 + 1}))
        assert guests_in(tmp_path) == [running["guest"].pid]
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
