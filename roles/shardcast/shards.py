"""Where a shard lies in a checkpoint's files, and how to read it there without copying."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from roles.shardcast.manifest import READ_BLOCK, Sharded, total_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one file's bytes."""

    name: str
    offset: int
    length: int


class Layout:
    """A manifest's arithmetic: shard index -> size and pieces. Offsets are computed once."""

    def __init__(self, manifest: Sharded) -> None:
        self.manifest = manifest
        self.total = total_bytes(manifest)
        self._files = [file for file in manifest.files if file.size]
        self._starts: list[int] = []
        position = 0
        for file in self._files:
            self._starts.append(position)
            position += file.size

    def size(self, index: int) -> int:
        """Bytes of a shard: `shard_size`, or the remainder for the last."""
        return min(self.manifest.shard_size, self.total - index * self.manifest.shard_size)

    def pieces(self, index: int, *, skip: int = 0, length: int | None = None) -> Iterator[Piece]:
        """The pieces of a shard, or of `length` of its bytes from `skip` on, in order."""
        position = index * self.manifest.shard_size + skip
        end = position + (self.size(index) - skip if length is None else length)
        at = bisect_right(self._starts, position) - 1
        while position < end:
            file, start = self._files[at], self._starts[at]
            take = min(end, start + file.size) - position
            yield Piece(file.name, position - start, take)
            position, at = position + take, at + 1


def read_shard(directory: Path, layout: Layout, index: int) -> Iterator[bytes]:
    """A shard's bytes in blocks of at most 1 MiB. A file that has shrunk since gives fewer bytes,
    which the reader notices."""
    for piece in layout.pieces(index):
        with (directory / piece.name).open("rb") as file:
            file.seek(piece.offset)
            left = piece.length
            while left and (block := file.read(min(left, READ_BLOCK))):
                left -= len(block)
                yield block


def is_shard_intact(directory: Path, layout: Layout, index: int) -> bool:
    """Whether the bytes on disk are the shard's."""
    digest = hashlib.sha256()
    with suppress(OSError):
        for block in read_shard(directory, layout, index):
            digest.update(block)
    return digest.hexdigest() == layout.manifest.shards[index]


def is_checkpoint_intact(directory: Path, layout: Layout) -> bool:
    """Whether the directory holds exactly the manifest's files (except hidden ones), every byte right (CKPT-02)."""
    try:
        found = {entry.name: entry.stat().st_size for entry in os.scandir(directory) if not entry.name.startswith(".")}
    except OSError:
        return False
    if found != {file.name: file.size for file in layout.manifest.files}:
        return False
    return all(is_shard_intact(directory, layout, index) for index in range(len(layout.manifest.shards)))
