"""Makes a delta of two checkpoints: a header, then each file's blocks and its SHA-256."""

from __future__ import annotations

import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from dht.disk import sync
from dht.encoding import encode
from roles.shardcast.delta.block import encode_block
from roles.shardcast.delta.plan import FORMATS, MAX_FILES, MAX_HEADER, MAX_SPANS, Block, Plan, plan_blocks, plan_file

T = TypeVar("T")
A = TypeVar("A")

MAGIC = b"INDELTA1"
SAME, LITERAL, CODED = 0, 1, 2
BLOCK_HEAD = struct.Struct("<BI")
WORTHWHILE_SHARE = 0.25
"""A delta larger than this share of the whole costs its reader more time than it saves, because weights that nearly all
changed are coded at a tenth of the speed."""
SLICES, SLICE = 16, 2**15
"""Number and size in bytes of the slices sampled to decide whether a delta is worth making."""
THREADS = min(4, os.cpu_count() or 1)
AHEAD = THREADS + 3
"""Maximum number of blocks read but not yet written."""


@dataclass(frozen=True, slots=True)
class DeltaReport:
    """Statistics of a delta. Sizes in bytes; `elements` counts the floats compared, `changed` those that differ."""

    full_bytes: int
    delta_bytes: int
    changed: int
    elements: int


@dataclass(frozen=True, slots=True)
class Coded:
    """A block as stored in a delta."""

    mode: int
    payload: bytes
    changed: int
    elements: int


class _TooLarge(Exception):
    """The delta has exceeded the size up to which it is worthwhile."""


def encode_delta(base: Path, new: Path, out: Path) -> DeltaReport:
    """Write to `out`, atomically, the lossless delta from the checkpoint in `base` to the one in `new`.

    Files are taken as for a manifest: no hidden ones, no sub-directories. Blocking; holds a few blocks of 4 MiB.
    Raises ValueError when `new` has no file, too many, or too many alternating kinds of tensors; OSError when a file
    cannot be read or written.
    """
    paths, plan = _plan_all(base, new)
    return _write(base, paths, plan, out, most=None)


def encode_worthwhile(base: Path, new: Path, out: Path, *, most_share: float = WORTHWHILE_SHARE) -> DeltaReport | None:
    """As `encode_delta`, but returns None and writes no file when the delta exceeds that share of the whole.

    A sample is coded first, so that a checkpoint in which everything changed costs almost nothing.
    """
    try:
        paths, plan = _plan_all(base, new)
    except ValueError:
        return None
    most = int(most_share * sum(entry.file.size for entry in plan.files))
    if _estimate(base, new, plan) > most:
        return None
    try:
        return _write(base, paths, plan, out, most=most)
    except _TooLarge:
        return None


def _plan_all(base: Path, new: Path) -> tuple[list[Path], Plan]:
    paths = sorted(path for path in new.iterdir() if path.is_file() and not path.name.startswith("."))
    if not 0 < len(paths) <= MAX_FILES:
        raise ValueError(f"{new} holds {len(paths)} files: no checkpoint")
    plan = Plan(files=tuple(plan_file(base / path.name, path) for path in paths))
    if sum(len(entry.spans) for entry in plan.files) > MAX_SPANS or len(encode(plan)) > MAX_HEADER:
        raise ValueError(f"{new} holds too many kinds of tensors in turn")
    return paths, plan


def _estimate(base: Path, new: Path, plan: Plan) -> int:
    """Estimated bytes of a delta, from the coded size of slices spread over what both checkpoints have."""
    blocks = [(entry.file.name, block) for entry in plan.files for block in plan_blocks(entry)]
    shared = [(name, block) for name, block in blocks if block.base >= 0]
    alone = sum(block.size for _, block in blocks if block.base < 0)
    count = min(SLICES, len(shared))
    chosen = [shared[number * len(shared) // count] for number in range(count)]
    read = coded = 0
    for name, block in chosen:
        part = replace(block, size=min(block.size, SLICE))
        with (new / name).open("rb") as after, (base / name).open("rb") as before:
            data = read_exactly(after, part.start, part.size)
            coded += len(_code(part, read_exactly(before, part.base, part.size), data).payload)
        read += part.size
    return alone + (coded * sum(block.size for _, block in shared) // read if read else 0)


def _write(base: Path, paths: list[Path], plan: Plan, out: Path, *, most: int | None) -> DeltaReport:
    temporary, header = out.with_name(f".{out.name}.tmp"), encode(plan)
    try:
        with temporary.open("wb") as file:
            file.write(MAGIC + struct.pack("<I", len(header)) + header)
            changed, elements = _write_files(file, base, paths, plan, most)
            delta_bytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    sync(out.parent)
    return DeltaReport(sum(entry.file.size for entry in plan.files), delta_bytes, changed, elements)


def _write_files(out: BinaryIO, base: Path, paths: list[Path], plan: Plan, most: int | None) -> tuple[int, int]:
    """Write all files. Returns how many elements changed, and of how many. Raises _TooLarge past `most` bytes."""
    changed = elements = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for entry, path in zip(plan.files, paths, strict=True):
            for coded in _write_blocks(out, base / path.name, path, list(plan_blocks(entry)), pool):
                changed, elements = changed + coded.changed, elements + coded.elements
                if most is not None and out.tell() > most:
                    raise _TooLarge
    return changed, elements


def _write_blocks(
    out: BinaryIO, base: Path, new: Path, blocks: list[Block], pool: ThreadPoolExecutor
) -> Iterator[Coded]:
    """Write one file's blocks, then its digest. Blocks are read and hashed here while the pool codes earlier ones."""
    digest = hashlib.sha256()
    with new.open("rb") as after, (base if base.is_file() else new).open("rb") as before:

        def read(block: Block) -> tuple[Block, bytes, bytes]:
            data = read_exactly(after, block.start, block.size)
            digest.update(data)
            return block, b"" if block.base < 0 else read_exactly(before, block.base, block.size), data

        for coded in map_ahead(pool, lambda job: _code(*job), map(read, blocks)):
            out.write(BLOCK_HEAD.pack(coded.mode, len(coded.payload)) + coded.payload)
            yield coded
    out.write(digest.digest())


def _code(block: Block, base: bytes, new: bytes) -> Coded:
    form = FORMATS.get(block.kind)
    elements = len(form.view(new)) if form else 0
    if block.base >= 0 and base == new:
        return Coded(SAME, b"", 0, elements)
    if form is None:
        return Coded(LITERAL, new, 0, 0)
    payload, changed = encode_block(base, new, form)
    return (
        Coded(CODED, payload, changed, elements) if len(payload) < len(new) else Coded(LITERAL, new, changed, elements)
    )


def map_ahead(pool: ThreadPoolExecutor, work: Callable[[A], T], jobs: Iterable[A]) -> Iterator[T]:
    """Results in order. At most `AHEAD` jobs are taken before the oldest one's result is returned."""
    waiting: deque[Future[T]] = deque()
    for job in jobs:
        waiting.append(pool.submit(work, job))
        if len(waiting) >= AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def read_exactly(file: BinaryIO, start: int, size: int) -> bytes:
    """`size` bytes at `start`. Raises OSError when the file has become shorter."""
    file.seek(start)
    data = file.read(size)
    if len(data) != size:
        raise OSError(f"{file.name} is shorter than it was")
    return data
