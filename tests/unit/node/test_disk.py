from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dht.errors import DiskFull, TransportError
from node.actors import Closing, Parts
from node.app import Node
from node.config import NodeConfig
from node.disk import ROOM_SECONDS, DiskWatch, is_disk_full, measure, share_of_blobs, share_of_events, wait_for_room
from node.log import EventStream
from roles.compute import ComputeThread

KIB, MIB = 2**10, 2**20


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_measure__adds_up_and_names_the_largest(tmp_path: Path) -> None:
    fill(tmp_path / "events.jsonl", 8 * KIB)
    fill(tmp_path / "relay" / "blobs" / "ab" / "abcd", 64 * KIB)
    (tmp_path / "link").symlink_to(tmp_path / "relay")
    found = measure(tmp_path)
    assert (found.total, found.largest) == (72 * KIB, "relay")


def test_share_of_blobs__leaves_room_for_logs_and_journals__ckpt_12() -> None:
    assert share_of_blobs(20 * 2**30) == 20 * 2**30 - 208 * MIB
    assert share_of_blobs(10 * MIB) == 8 * MIB


async def test_look__gives_up_old_logs_before_anything_else__ckpt_12(tmp_path: Path) -> None:
    for name in ("events.jsonl", "events.1.jsonl", "node.log.1"):
        fill(tmp_path / name, 512 * KIB)
    watch = DiskWatch(tmp_path, MIB)
    await watch.look()
    assert os.listdir(tmp_path) == ["events.jsonl"]
    assert watch.used == 512 * KIB


async def test_look__within_the_budget_nothing_goes(tmp_path: Path) -> None:
    fill(tmp_path / "events.1.jsonl", 512 * KIB)
    await DiskWatch(tmp_path, MIB).look()
    assert (tmp_path / "events.1.jsonl").exists()


async def test_look__what_cannot_be_given_up_stays(tmp_path: Path) -> None:
    fill(tmp_path / "trainer" / "checkpoints" / "weights", 2 * MIB)
    watch = DiskWatch(tmp_path, MIB)
    await watch.look()
    assert watch.used == 2 * MIB
    assert (tmp_path / "trainer" / "checkpoints" / "weights").exists()


def test_write__a_flood_of_events_is_bounded__ckpt_12(tmp_path: Path) -> None:
    events = EventStream(tmp_path / "events.jsonl", limit=share_of_events(MIB))
    for number in range(5_000):
        events.write({"ts": 0.0, "event": "row.refused", "why": "x" * 64, "number": number})
    events.close()
    assert measure(tmp_path).total <= 2 * (share_of_events(MIB) + 8 * KIB)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL, DENIED = OSError(errno.ENOSPC, "no space"), OSError(errno.EACCES, "no right")


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (FULL, True),
        (DiskFull("no room"), True),
        (caused(ValueError("the journal"), FULL), True),
        (ExceptionGroup("tasks", [FULL, ExceptionGroup("more", [DiskFull("no room")])]), True),
        (ExceptionGroup("tasks", [FULL, TransportError("gone")]), False),
        (caused(ValueError("the journal"), DENIED), False),
        (DENIED, False),
    ],
)
def test_is_disk_full__the_cause_and_nothing_else__ckpt_12(error: Exception, is_full: bool) -> None:
    assert is_disk_full(error) == is_full


async def test_wait_for_room__a_pause_where_there_is_some(tmp_path: Path) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await wait_for_room(tmp_path, sleep=sleep)
    assert slept == [ROOM_SECONDS]


async def test_closing__the_learner_of_a_role_that_failed() -> None:
    closed, compute = list[bool](), ComputeThread()
    learner = SimpleNamespace(close=lambda: closed.append(True))
    with pytest.raises(ExceptionGroup):
        await Closing(FillsTheDisk(), learner, compute).run()
    compute.close()
    assert closed == [True]


class FillsTheDisk:
    """A role that finds the disk full on its first run, and ends normally on the next."""

    def __init__(self) -> None:
        self.plays = 0

    async def run(self) -> None:
        self.plays += 1
        if self.plays == 1:
            raise ExceptionGroup("tasks", [FULL])


async def test_play__a_role_that_found_the_disk_full_is_played_again__ckpt_12(tmp_path: Path) -> None:
    actor, config = FillsTheDisk(), NodeConfig(role="worker", data=tmp_path)
    events = EventStream(tmp_path / "events.jsonl")

    async def build(parts: Parts) -> FillsTheDisk:
        return actor

    node, parts = Node(config, events, build=build), cast(Parts, SimpleNamespace(config=config))
    assert not await node._play(parts)
    assert node.status.plain()["phase"] == "waiting for room on the disk"
    assert await node._play(parts)
    events.close()
