"""Disk space reserved before it is written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from roles.shardcast.disk import WORTH_RESERVING, reserve_room


def test_reserve_room__the_file_has_its_length_and_its_blocks(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        reserve_room(file.fileno(), WORTH_RESERVING)
        found = os.fstat(file.fileno())
    assert found.st_size == WORTH_RESERVING
    assert found.st_blocks * 512 >= WORTH_RESERVING


def test_reserve_room__more_than_the_disk_has_takes_none_of_it_ckpt_12(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError, match="No space left") as error:
            reserve_room(file.fileno(), 2**50)
        assert os.fstat(file.fileno()).st_blocks == 0
    assert error.value.errno == errno.ENOSPC


def test_reserve_room__what_is_small_is_left_to_the_system(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        reserve_room(file.fileno(), WORTH_RESERVING - 1)
        assert os.fstat(file.fileno()).st_size == 0
