"""Writes survive a power cut: the bytes are on the disk before the name is, and the name before anybody is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.disk import make_folder, sync_files, write_durably, write_new


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bytes]]:
    """What has been fsynced so far, with its content at that time: a file, or the file `head` of a folder."""
    seen: list[tuple[Path, bytes]] = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        head = path / "head" if path.is_dir() else path
        seen.append((path, head.read_bytes() if head.is_file() else b""))

    monkeypatch.setattr(os, "fsync", sync)
    return seen


def test_write_durably__the_bytes_reach_the_disk_then_the_name(
    tmp_path: Path, synced: list[tuple[Path, bytes]]
) -> None:
    (tmp_path / "head").write_bytes(b"old")
    write_durably(tmp_path / "head", b"new")
    assert synced == [(tmp_path / ".head.tmp", b"new"), (tmp_path, b"new")]


def test_write_new__the_bytes_reach_the_disk_then_the_name(tmp_path: Path, synced: list[tuple[Path, bytes]]) -> None:
    write_new(tmp_path / "head", b"new")
    assert [data for _, data in synced] == [b"new", b"new"]
    assert (synced[-1][0], os.listdir(tmp_path)) == (tmp_path, ["head"])


def test_write_new__never_over_another(tmp_path: Path) -> None:
    (tmp_path / "head").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "head", b"new")
    assert ((tmp_path / "head").read_bytes(), os.listdir(tmp_path)) == (b"old", ["head"])


def test_make_folder__each_new_name_reaches_the_disk(tmp_path: Path, synced: list[tuple[Path, bytes]]) -> None:
    make_folder(tmp_path / "run" / "state")
    assert {path for path, _ in synced} == {tmp_path, tmp_path / "run"}
    make_folder(tmp_path / "run" / "state")
    assert len(synced) == 2


def test_sync_files__bytes_and_names(tmp_path: Path, synced: list[tuple[Path, bytes]]) -> None:
    (tmp_path / "head").write_bytes(b"new")
    sync_files(tmp_path)
    assert synced == [(tmp_path / "head", b"new"), (tmp_path, b"new")]
