"""What is written survives a power cut: its bytes are on the disk before its name is, and that before anybody is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.disk import write_durably


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bytes]]:
    """What was synced to the disk so far, with what it said then: a file, or the file `head` of a folder."""
    seen: list[tuple[Path, bytes]] = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append((path, (path / "head" if path.is_dir() else path).read_bytes()))

    monkeypatch.setattr(os, "fsync", sync)
    return seen


def test_write_durably__the_bytes_reach_the_disk_then_the_name(
    tmp_path: Path, synced: list[tuple[Path, bytes]]
) -> None:
    (tmp_path / "head").write_bytes(b"old")
    write_durably(tmp_path / "head", b"new")
    assert synced == [(tmp_path / ".head.tmp", b"new"), (tmp_path, b"new")]
