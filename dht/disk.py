"""Writing so that a kill leaves the old file or the new one, never half of either, and a power cut none that was told of."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of a file system that has no links, as on memory sticks."""


def write_durably(path: Path, data: bytes) -> None:
    """Temp file beside it, fsync, rename, fsync of the directory. Raises OSError (WGT-07)."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """A file that was not there, durably: whole or not at all, never over another. Raises FileExistsError, OSError.

    A link fails where a rename would replace what is there. When it stands and its folder's sync fails, so does this.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a killed process of this id
    try:
        _fill(temporary, data, mode)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            _fill(path, data, mode)
    finally:
        with suppress(OSError):  # a disk that fails just now: what was to be said is said
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """A folder, and those above it, their names on the disk: what is written into it durably is not lost with it.
    Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync_files(folder: Path) -> None:
    """Put what lies right in a folder onto the disk, bytes and names: before the folder is renamed. Raises OSError."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Put a file's bytes, or the renames in a folder, onto the disk. Raises OSError."""
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
