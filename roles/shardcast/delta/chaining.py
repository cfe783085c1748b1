"""A base with a delta applied, as the base of the next delta: a chain is applied in one pass, without the
intermediate checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dht.encoding import decode
from dht.errors import Malformed
from roles.shardcast.delta.applying import DIGEST_SIZE, BaseFiles, check_head
from roles.shardcast.delta.block import decode_block
from roles.shardcast.delta.encoding import BLOCK_HEAD, LITERAL, MAGIC, SAME
from roles.shardcast.delta.plan import FORMATS, MAX_HEADER, Block, FilePlan, Plan, check_plan, plan_blocks


class Parts(Protocol):
    """The bytes of a delta at any position; callable from any thread."""

    def read_at(self, start: int, length: int, /) -> bytes:
        """`length` bytes, fewer at the end. Raises OSError."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block, and the position of its payload in the delta."""

    block: Block
    mode: int
    start: int
    length: int


class DeltaBase:
    """A checkpoint that is not on disk, represented by its base and a delta to it. Blocks are decoded on request.

    Requests must use the same cut into blocks, as the next delta of the same tensors does. Any other cut is Malformed,
    because a maliciously built chain could otherwise have each block decoded many times. The constructor reads the
    delta's block headers. It raises Malformed and OSError, and so does `read`.
    """

    def __init__(self, delta: Parts, base: BaseFiles, *, max_bytes: int) -> None:
        self._delta, self._base = delta, base
        plan, at = _read_plan(delta)
        check_plan(plan, base, max_bytes=max_bytes)
        self._sizes = {entry.file.name: entry.file.size for entry in plan.files}
        self._blocks: dict[tuple[str, int], _Placed] = {}
        for entry in plan.files:
            for placed in _place(delta, entry, at):
                self._blocks[entry.file.name, placed.block.start] = placed
                at = placed.start + placed.length
            at += DIGEST_SIZE

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""
        return self._sizes.get(name, 0)

    def read(self, name: str, start: int, size: int) -> bytearray:
        """A block of a file, in a buffer that the caller owns."""
        placed = self._blocks.get((name, start))
        if placed is None or placed.block.size != size:
            raise Malformed("deltas of a chain are not cut alike")
        block = placed.block
        payload = self._delta.read_at(placed.start, placed.length)
        if len(payload) != placed.length:
            raise Malformed("a delta is cut")
        if placed.mode == LITERAL:
            return bytearray(payload)
        held = self._base.read(name, block.base, block.size)
        if placed.mode != SAME:
            decode_block(held, payload, FORMATS[block.kind])  # in place
        return held


def _read_plan(delta: Parts) -> tuple[Plan, int]:
    """A delta's header, and the position where its blocks begin."""
    head = delta.read_at(0, len(MAGIC) + 4)
    if len(head) != len(MAGIC) + 4 or head[: len(MAGIC)] != MAGIC:
        raise Malformed("this is no delta")
    (length,) = struct.unpack("<I", head[len(MAGIC) :])
    if length > MAX_HEADER:
        raise Malformed("a delta's header is over its bound")
    return decode(Plan, delta.read_at(len(head), length)), len(head) + length


def _place(delta: Parts, entry: FilePlan, at: int) -> Iterator[_Placed]:
    for block in plan_blocks(entry):
        head = delta.read_at(at, BLOCK_HEAD.size)
        if len(head) != BLOCK_HEAD.size:
            raise Malformed("a delta is cut")
        mode, length = BLOCK_HEAD.unpack(head)
        check_head(block, mode, length)
        at += BLOCK_HEAD.size
        yield _Placed(block, mode, at, length)
        at += length
