"""Processes forked by a server with everything imported behave like any others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.testnet.forking import CLOSE_SECONDS, ForkServer
from node.testnet.processes import Child, processes_of

CALENDAR = [sys.executable, "-m", "calendar", "2026"]
SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")


@pytest.fixture
async def forks(tmp_path: Path) -> AsyncIterator[ForkServer]:
    server = ForkServer(output=tmp_path / "forkserver.log", modules=("json",))
    await server.open()
    yield server
    await server.close()
    assert not processes_of(os.getpid())


async def test_start__does_what_the_command_does(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("calendar", CALENDAR, output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 0
    assert "2026" in child.output.read_text()


async def test_start__one_that_fails_has_its_code_and_last_words(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("calendar", [*CALENDAR, "13", "?"], output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 2
    assert "usage:" in child.output.read_text()


async def test_start__has_a_session_of_its_own_and_dies_alone(forks: ForkServer, tmp_path: Path) -> None:
    first, second = (Child(name, SERVER, output=tmp_path / name / "output.log", forks=forks) for name in "ab")
    await first.start()
    await second.start()
    assert os.getsid(first.pid) == first.pid != os.getsid(second.pid)
    os.kill(first.pid, signal.SIGKILL)
    assert await first.wait() == -signal.SIGKILL
    assert (first.was_killed, second.is_running) == (True, True)
    await second.stop()


async def test_start__what_it_starts_in_turn_has_our_mark(forks: ForkServer, tmp_path: Path) -> None:
    """Else what a node leaves behind, such as its p2pd, would be found by nobody."""
    command = [sys.executable, "-m", "tests.unit.node.starting_process"]
    child = Child("a", command, output=tmp_path / "a" / "output.log", forks=forks)
    await child.start()
    async with asyncio.timeout(20):
        while not any(command == "sleep 60" for _, command in processes_of(os.getpid())):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)
    await child.stop()


async def test_start__two_at_once_are_not_mistaken_for_each_other(forks: ForkServer, tmp_path: Path) -> None:
    commands = {str(n): [*CALENDAR, *(("13", "?") if n % 2 else ())] for n in range(16)}
    children = [
        Child(name, words, output=tmp_path / name / "output.log", forks=forks) for name, words in commands.items()
    ]
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.start())
    assert [await child.wait() for child in children] == [0, 2] * 8


async def test_start__who_gives_up_waiting_costs_nobody_else(forks: ForkServer, tmp_path: Path) -> None:
    first, second = (Child(name, CALENDAR, output=tmp_path / name / "output.log", forks=forks) for name in "ab")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await first.start()
    async with asyncio.timeout(20):
        await second.start()
        assert await second.wait() == 0
    assert "2026" in second.output.read_text()


async def test_start__what_is_imported_may_print(tmp_path: Path) -> None:
    forks = ForkServer(output=tmp_path / "forkserver.log", modules=("this",))
    await forks.open()
    child = Child("calendar", CALENDAR, output=tmp_path / "calendar" / "output.log", forks=forks)
    async with asyncio.timeout(20):
        await child.start()
        assert await child.wait() == 0
    await forks.close()
    assert "Beautiful is better than ugly." in (tmp_path / "forkserver.log").read_text()


async def test_close__ends_what_was_forked(forks: ForkServer, tmp_path: Path) -> None:
    child = Child("a", SERVER, output=tmp_path / "a" / "output.log", forks=forks)
    await child.start()
    await forks.close()
    assert await child.wait() != 0


async def test_close__of_one_that_still_imports_and_was_asked_for_nothing_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    forks = ForkServer(output=tmp_path / "forkserver.log", modules=("slow_to_import",))
    await forks.open()
    async with asyncio.timeout(CLOSE_SECONDS / 2):
        await forks.close()
    assert not processes_of(os.getpid())


def test_forkserver__whose_parent_dies_asks_each_to_end_once(tmp_path: Path) -> None:
    output = tmp_path / "said"
    os.mkfifo(output)
    command = [sys.executable, "-m", "tests.unit.node.patient_process"]
    request = {"number": 1, "command": command, "output": str(output)}
    server = [sys.executable, "-m", "node.testnet.forkserver", "json"]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        with output.open() as said:
            assert said.readline() == "up\n"
            process.stdin.close()
            assert said.read() == "asked\n"
    assert process.returncode == 0


async def test_start__without_a_server_the_command_is_executed(tmp_path: Path) -> None:
    forks = ForkServer(output=tmp_path / "forkserver.log", modules=("there.is.no.such.module",))
    await forks.open()
    child = Child("calendar", CALENDAR, output=tmp_path / "calendar" / "output.log", forks=forks)
    await child.start()
    assert await child.wait() == 0
    assert "no module" in (tmp_path / "forkserver.log").read_text().lower()
    await forks.close()
