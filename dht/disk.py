"""Atomic, durable writes. A kill leaves the old file or the new one, never half of either; a power cut loses no write
that was reported as done."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without hard links, such as those of memory sticks."""


def write_durably(path: Path, data: bytes) -> None:
    """Write a temporary file beside `path`, fsync it, rename it, fsync the directory. Raises OSError (WGT-07)."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Create a new file durably: complete or not at all, never over an existing one. Raises FileExistsError, OSError.

    It uses a hard link, which fails where a rename would overwrite. If the file is created but the fsync of its
    directory fails, this raises too.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left by a killed process that had this process id
    try:
        _fill(temporary, data, mode)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            _fill(path, data, mode)
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


def sync_files(folder: Path) -> None:
    """Fsync the files directly in a folder, then the folder itself; call it before the
    folder is renamed. Raises OSError."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Fsync a file's bytes, or a folder's entries. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
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
