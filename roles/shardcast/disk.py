"""Disk space, reserved before a file is written."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

from dht.errors import NO_ROOM

RESERVE = 64 * 2**20
"""Bytes of the disk that are always left free (CKPT-12)."""
WORTH_RESERVING = 2**20
"""Minimum size in bytes for reserving; below it the system finds the space just as well while it writes."""


def reserve_room(descriptor: int, size: int) -> None:
    """Have the file system reserve `size` bytes for a file, where it can. A disk that is too full then fails here,
    before anything was fetched, and writing costs a third less. The file has that length afterwards. Raises OSError."""
    if size < WORTH_RESERVING:
        return
    missing, disk = size - 512 * os.fstat(descriptor).st_blocks, os.fstatvfs(descriptor)
    # when asked for more than it has, a disk allocates all it has before it fails
    if missing > 0 and missing + RESERVE > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _fallocate is not None and _fallocate(descriptor, 0, 0, size) < 0 and ctypes.get_errno() in NO_ROOM:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's own call: `os.posix_fallocate` writes to every block on a file system that cannot reserve space."""
    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


_fallocate = _find_fallocate()
