"""Rebuilding a checkpoint from a base and a delta that came from a stranger."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from dht.encoding import decode
from dht.errors import Malformed
from roles.shardcast.delta.block import decode_block
from roles.shardcast.delta.encoding import BLOCK_HEAD, CODED, LITERAL, MAGIC, SAME, THREADS, map_ahead, read_exactly
from roles.shardcast.delta.plan import FORMATS, MAX_HEADER, Block, FilePlan, Plan, check_plan, plan_blocks
from roles.shardcast.disk import sync_directory
from roles.shardcast.manifest import MAX_CHECKPOINT_BYTES


def apply_delta(base: Path, delta: Path, into: Path, *, max_bytes: int = MAX_CHECKPOINT_BYTES) -> None:
    """Rebuild in `into`, which must not exist, the checkpoint that `delta` was made of; there at once, or not at all.

    Every file is compared with the SHA-256 in the delta; the caller, who has a signed manifest, may check that too.
    Blocking; holds a few blocks of 8 MiB whatever the delta says, and writes no more than the base's bytes and the
    delta's. Raises Malformed when the delta is damaged, hostile, or of another base; OSError for our own disk.
    """
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with delta.open("rb") as source, ThreadPoolExecutor(THREADS) as pool:
            plan = _read_plan(source)
            check_plan(plan, base, max_bytes=max_bytes)
            for entry in plan.files:
                _rebuild(source, base / entry.file.name, partial / entry.file.name, entry, pool)
            if source.read(1):
                raise Malformed("a delta has bytes after its end")
        sync_directory(partial)
        os.rename(partial, into)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_directory(into.parent)


def _read_plan(source: BinaryIO) -> Plan:
    if _take(source, len(MAGIC)) != MAGIC:
        raise Malformed("this is no delta")
    (length,) = struct.unpack("<I", _take(source, 4))
    if length > MAX_HEADER:
        raise Malformed("a delta's header is over its bound")
    return decode(Plan, _take(source, length))


def _rebuild(source: BinaryIO, base: Path, into: Path, entry: FilePlan, pool: ThreadPoolExecutor) -> None:
    """One file. Blocks are read here and decoded in the pool; those done are hashed and written here, in order."""
    digest = hashlib.sha256()
    with ExitStack() as stack:
        before = stack.enter_context(base.open("rb")) if base.is_file() else None
        out = stack.enter_context(into.open("wb"))
        for data in map_ahead(pool, lambda job: _decode(*job), _read_blocks(source, before, entry)):
            digest.update(data)
            out.write(data)
        if _take(source, digest.digest_size) != digest.digest():
            raise Malformed(f"a delta does not rebuild {entry.file.name}: it is damaged, or of another base")
        out.flush()
        os.fsync(out.fileno())


def _read_blocks(
    source: BinaryIO, before: BinaryIO | None, entry: FilePlan
) -> Iterator[tuple[Block, int, bytes, bytes]]:
    for block in plan_blocks(entry):
        mode, length = BLOCK_HEAD.unpack(_take(source, BLOCK_HEAD.size))
        allowed = {SAME: length == 0, LITERAL: length == block.size, CODED: length < block.size}.get(mode, False)
        if not allowed or (mode == CODED and block.kind not in FORMATS) or (mode == SAME and block.base < 0):
            raise Malformed("a delta's block has a mode or a length it cannot have")
        payload = _take(source, length)
        held = b"" if mode == LITERAL or before is None else read_exactly(before, block.base, block.size)
        yield block, mode, held, payload


def _decode(block: Block, mode: int, base: bytes, payload: bytes) -> bytes | memoryview:
    if mode == LITERAL:
        return payload
    return base if mode == SAME else decode_block(base, payload, FORMATS[block.kind])


def _take(source: BinaryIO, length: int) -> bytes:
    data = source.read(length)
    if len(data) != length:
        raise Malformed("a delta is cut")
    return data
