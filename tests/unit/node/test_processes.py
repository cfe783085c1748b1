"""Children of a testnet: how they ended, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from node.lifetime import FORKER_VARIABLE, PARENT_VARIABLE
from node.testnet.processes import Child, end_guests, guests_in, remove_traces

Start = Callable[..., "subprocess.Popen[bytes]"]

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is tied")
@pytest.mark.parametrize(("is_alive", "code"), [(True, 0), (False, 1)])
def test_die_with_parent__whom_another_forked_dies_with_that_one(is_alive: bool, code: int) -> None:
    """Also when the forker died before its child could ask for the signal: an orphan has another parent by then."""
    environment = os.environ | {PARENT_VARIABLE: "1", FORKER_VARIABLE: str(os.getpid() if is_alive else 1)}
    command = [sys.executable, "-c", "from node.lifetime import die_with_parent; die_with_parent()"]
    assert subprocess.run(command, env=environment, check=False).returncode == code


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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that holds a file of a data folder open, as a node does."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *, command: Sequence[str] = SLEEP, parent: int | None = None) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key != PARENT_VARIABLE}
        environment |= {PARENT_VARIABLE: str(parent)} if parent else {}
        (tmp_path / name).mkdir()
        with (tmp_path / name / "events.jsonl").open("a+b") as events:
            process = subprocess.Popen(command, env=environment, stdin=events, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / name / "status.json").write_text(json.dumps({"pid": process.pid}))
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_guests_in__nodes_started_by_hand(tmp_path: Path, start: Start) -> None:
    guest = start("guest")
    start("ours", parent=os.getpid())
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "status.json").write_text(json.dumps({"pid": 2**22 + 1}))
    assert guests_in(tmp_path) == [guest.pid]


def test_guests_in__not_who_was_given_a_dead_nodes_number(tmp_path: Path, start: Start) -> None:
    stranger = start("elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path.with_name("elsewhere"))
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "status.json").write_text(json.dumps({"pid": stranger.pid}))
    assert guests_in(tmp_path) == []


@pytest.mark.parametrize(
    ("deafness", "end"),
    [("", -signal.SIGTERM), ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);", -signal.SIGKILL)],
    ids=["asked", "made to"],
)
async def test_end_guests__asked_then_made_to(tmp_path: Path, start: Start, deafness: str, end: int) -> None:
    guest = start(
        "guest", command=[sys.executable, "-c", f"{deafness}print('up', flush=True); import time; time.sleep(60)"]
    )
    await end_guests(tmp_path, seconds=0.5)
    assert (guest.wait(), guests_in(tmp_path)) == (end, [])
