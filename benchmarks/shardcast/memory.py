"""Puts memory into the state of a machine that has been up for a while: full of cached file pages.

A virtual machine may return unused memory to its host, and the first touch of a page then costs several times as much
as writing it; a broadcast benchmark would measure that. Reading a sparse file fills the page cache without a disk, and
writers then get those pages.
"""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 2**20
LEFT_FREE = 2**29


class Filler:
    """A sparse file as long as free memory. It disappears with its folder."""

    def __init__(self, folder: Path) -> None:
        self._path, self._size = folder / "hole", 0

    def fill(self) -> None:
        """Leave at most half a GiB free, and nothing left to write back. The first time
        takes about two seconds per GiB."""
        os.sync()
        more, room = max(0, _free() - LEFT_FREE), bytearray(BLOCK)
        with self._path.open("ab", buffering=0) as file:
            file.truncate(self._size + more)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._size)
            while file.readinto(room):
                pass
        self._size += more


def _free() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemFree"].split()[0]) * 1024
