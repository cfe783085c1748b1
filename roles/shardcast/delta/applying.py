"""Rebuilds a checkpoint from a base and an untrusted delta."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dht.disk import sync
from dht.encoding import decode
from dht.errors import Malformed
from roles.messages import FileEntry
from roles.shardcast.delta.block import decode_block
from roles.shardcast.delta.encoding import BLOCK_HEAD, CODED, LITERAL, MAGIC, SAME, THREADS, map_ahead
from roles.shardcast.delta.plan import FORMATS, MAX_HEADER, Block, FilePlan, Plan, check_plan, plan_blocks
from roles.shardcast.manifest import MAX_CHECKPOINT_BYTES

Data = bytes | bytearray | memoryview
DIGEST_SIZE = hashlib.sha256().digest_size


class Source(Protocol):
    """The bytes of a delta, read from its start."""

    def read(self, length: int, /) -> bytes: ...


class BaseFiles(Protocol):
    """The files of the checkpoint that a delta was made against."""

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""

    def read(self, name: str, start: int, size: int) -> bytearray:
        """Part of a file, in a buffer that the caller owns. Raises OSError when it is not there."""


@dataclass(frozen=True, slots=True)
class FolderBase:
    """A checkpoint's folder as the base."""

    folder: Path

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""
        path = self.folder / name
        return path.stat().st_size if path.is_file() else 0

    def read(self, name: str, start: int, size: int) -> bytearray:
        """Part of a file, in a buffer that the caller owns. Raises OSError when it is not there."""
        data = bytearray(size)
        with (self.folder / name).open("rb") as file:
            if os.preadv(file.fileno(), [data], start) != size:
                raise OSError(f"{name} of the base is shorter than it was")
        return data


def apply_delta(base: Path, delta: Path, into: Path, *, max_bytes: int = MAX_CHECKPOINT_BYTES) -> None:
    """Rebuild, in `into`, which must not exist, the checkpoint that `delta` leads to. The folder appears atomically.

    Every file is checked against the SHA-256 in the delta; a caller with a signed manifest may check that too.
    Blocking; holds a few blocks of 4 MiB whatever the delta says, and writes no more than the bytes of base and delta
    together. Raises Malformed when the delta is damaged, hostile, or of another base; OSError for our own disk.
    """
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with delta.open("rb") as source, ThreadPoolExecutor(THREADS) as pool:
            held = FolderBase(base)
            plan = read_plan(source)
            check_plan(plan, held, max_bytes=max_bytes)
            for entry in plan.files:
                _rebuild_file(source, held, partial / entry.file.name, entry, pool)
            _check_end(source)
        sync(partial)
        os.rename(partial, into)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(into.parent)


def decode_files(source: Source, base: BaseFiles, *, files: Sequence[FileEntry]) -> Generator[Data]:
    """The bytes of all files, concatenated, in pieces of at most 4 MiB. Nothing is hashed: the caller has a manifest,
    whose `files` these must be.

    Blocking; close it when it is not read to its end. Raises Malformed when the delta is damaged, hostile, or of
    another base; OSError when the base cannot be read.
    """
    plan = read_plan(source)
    if tuple(entry.file for entry in plan.files) != tuple(files):
        raise Malformed("a delta makes other files than the manifest lists")
    check_plan(plan, base, max_bytes=sum(file.size for file in files))
    with ThreadPoolExecutor(THREADS) as pool:
        for entry in plan.files:
            yield from _decode_blocks(source, base, entry, pool)
            _take(source, DIGEST_SIZE)
    _check_end(source)


def read_plan(source: Source) -> Plan:
    """Read a delta's header. Raises Malformed."""
    if _take(source, len(MAGIC)) != MAGIC:
        raise Malformed("this is no delta")
    (length,) = struct.unpack("<I", _take(source, 4))
    if length > MAX_HEADER:
        raise Malformed("a delta's header is over its bound")
    return decode(Plan, _take(source, length))


def check_head(block: Block, mode: int, length: int) -> None:
    """Check the header of a block against its plan. Raises Malformed."""
    allowed = {SAME: length == 0, LITERAL: length == block.size, CODED: length < block.size}.get(mode, False)
    if not allowed or (mode == CODED and block.kind not in FORMATS) or (mode != LITERAL and block.base < 0):
        raise Malformed("a delta's block has a mode or a length it cannot have")


def _rebuild_file(source: Source, base: BaseFiles, into: Path, entry: FilePlan, pool: ThreadPoolExecutor) -> None:
    """Rebuild one file. Blocks are read here, decoded in the pool, then hashed and written here, in order."""
    digest = hashlib.sha256()
    with into.open("wb") as out:
        for data in _decode_blocks(source, base, entry, pool):
            digest.update(data)
            out.write(data)
        if _take(source, DIGEST_SIZE) != digest.digest():
            raise Malformed(f"a delta does not rebuild {entry.file.name}: it is damaged, or of another base")
        out.flush()
        os.fsync(out.fileno())


def _decode_blocks(source: Source, base: BaseFiles, entry: FilePlan, pool: ThreadPoolExecutor) -> Iterator[Data]:
    return map_ahead(pool, lambda job: _decode(base, entry.file.name, *job), _read_blocks(source, entry))


def _read_blocks(source: Source, entry: FilePlan) -> Iterator[tuple[Block, int, bytes]]:
    for block in plan_blocks(entry):
        mode, length = BLOCK_HEAD.unpack(_take(source, BLOCK_HEAD.size))
        check_head(block, mode, length)
        yield block, mode, _take(source, length)


def _decode(base: BaseFiles, name: str, block: Block, mode: int, payload: bytes) -> Data:
    if mode == LITERAL:
        return payload
    held = base.read(name, block.base, block.size)
    return held if mode == SAME else decode_block(held, payload, FORMATS[block.kind])


def _check_end(source: Source) -> None:
    if source.read(1):
        raise Malformed("a delta has bytes after its end")


def _take(source: Source, length: int) -> bytes:
    data = source.read(length)
    if len(data) != length:
        raise Malformed("a delta is cut")
    return data
