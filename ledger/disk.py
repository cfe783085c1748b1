"""Atomic, durable writes. A kill leaves the old file or the new one; a power cut loses no
write that was reported as done.

The same as `dht.disk`, which this package may not import.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without hard links, such as those of memory sticks."""


def write_durably(path: Path, data: bytes) -> None:
    """Write a temporary file beside `path`, fsync it, rename it, fsync the directory. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Create a new file of mode 0600 durably: complete or not at all, never over an existing one. It uses a hard link,
    which fails where a rename would overwrite. Raises FileExistsError, OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left by a killed process that had this process id
    try:
        _fill(temporary, data)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            _fill(path, data)
    finally:
        with suppress(OSError):  # the disk may be failing; the error that matters has been raised already
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and fsync their directory entries, so that files later written durably
    in it cannot be lost with it. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync(folder: Path) -> None:
    """Fsync the entries of a folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _write(descriptor, data)
    except BaseException:
        path.unlink()
        raise


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
