"""Writing so that a kill leaves the old file or the new one, never half of either."""

from __future__ import annotations

import errno
import os
from pathlib import Path

WORTH_RESERVING = 2**20
"""Bytes. Below, the system finds the room as well while it writes."""


def write_durably(path: Path, data: bytes) -> None:
    """Temp file beside it, fsync, rename, fsync of the directory. Raises OSError (WGT-07)."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve_room(descriptor: int, size: int) -> None:
    """Have the disk set aside what a file will hold, where it can: a full one says so before a byte was fetched for it,
    and writing costs a third less. The file has that length then. Raises OSError."""
    if size < WORTH_RESERVING or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
