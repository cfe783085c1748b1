"""Room on the disk, set aside before a file is written to it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

from dht.errors import NO_ROOM

RESERVE = 64 * 2**20
"""Bytes of the disk itself that are never used (CKPT-12)."""
WORTH_RESERVING = 2**20
"""Bytes. Below, the system finds the room as well while it writes."""


def reserve_room(descriptor: int, size: int) -> None:
    """Have the file system reserve `size` bytes for a file, where it can. A disk too full for it fails here, before a byte
    was fetched, and writing costs a third less. The file has that length afterwards. Raises OSError."""
    if size < WORTH_RESERVING:
        return
    missing, disk = size - 512 * os.fstat(descriptor).st_blocks, os.fstatvfs(descriptor)
    # asked for more than there is, a disk gives all it has before it fails
    if missing > 0 and missing + RESERVE > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _fallocate is not None and _fallocate(descriptor, 0, 0, size) < 0 and ctypes.get_errno() in NO_ROOM:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's own: `os.posix_fallocate` writes into every block of a disk that cannot set room aside."""
    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


_fallocate = _find_fallocate()
