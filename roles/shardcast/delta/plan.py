"""A delta's description of each file: the spans it is cut into, and where the base has the corresponding bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from dht.encoding import Message, Natural
from dht.errors import Malformed
from roles.messages import FileEntry
from roles.shardcast.delta.block import BF16, F32, Format
from roles.shardcast.manifest import MAX_CHECKPOINT_BYTES

BLOCK_BYTES = {"literal": 2**20, "bytes": 2**22, "bf16": 2**22, "f32": 2**21}
"""Block size in bytes for each kind; the last block of a span is shorter. About eight blocks are in memory at a time.
Larger ones code one percent better and decode a fifth slower."""
FORMATS: dict[str, Format] = {"bf16": BF16, "f32": F32}
MAX_TABLE = 100 * 2**20
"""Longest header that safetensors itself reads."""
MAX_HEADER = 2**22
MAX_SPANS = 4096
"""Maximum spans over all files: each costs its reader at least one block, however short."""
MAX_FILES = 256

_KINDS = {"BF16": "bf16", "F32": "f32"}


class Span(Message):
    """`size` bytes of one kind: `literal` has no counterpart in the base; the others are there in the same order."""

    kind: Literal["literal", "bytes", "bf16", "f32"]
    size: Annotated[int, Field(ge=1, le=MAX_CHECKPOINT_BYTES)]


class FilePlan(Message):
    """A file of the new checkpoint. `base_start` is where its first non-literal span begins in the base's file."""

    file: FileEntry
    base_start: Natural
    spans: Annotated[tuple[Span, ...], Field(max_length=MAX_SPANS)]


class Plan(Message):
    """A delta's header."""

    kind: Literal["delta-plan/1"] = "delta-plan/1"
    files: Annotated[tuple[FilePlan, ...], Field(max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class Block:
    """`size` bytes at `start` of the new file and at `base` of the base's file (-1: none)."""

    kind: str
    start: int
    size: int
    base: int


def plan_blocks(file: FilePlan) -> Iterator[Block]:
    """A file's blocks in order; none crosses a span boundary."""
    start, base = 0, file.base_start
    for span in file.spans:
        for offset in range(0, span.size, BLOCK_BYTES[span.kind]):
            size = min(BLOCK_BYTES[span.kind], span.size - offset)
            yield Block(span.kind, start, size, -1 if span.kind == "literal" else base)
            start, base = start + size, base + (0 if span.kind == "literal" else size)


class Sizes(Protocol):
    """What must be known of a base to check a plan."""

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""


def check_plan(plan: Plan, base: Sizes, *, max_bytes: int) -> None:
    """Check a header against the base that is here. Raises Malformed."""
    if len({entry.file.name.casefold() for entry in plan.files}) != len(plan.files):
        raise Malformed("two files of a delta share a name")
    if sum(entry.file.size for entry in plan.files) > max_bytes:
        raise Malformed(f"a delta rebuilds more than {max_bytes} bytes")
    if sum(len(entry.spans) for entry in plan.files) > MAX_SPANS:
        raise Malformed("a delta is cut into too many spans")
    for entry in plan.files:
        if sum(span.size for span in entry.spans) != entry.file.size:
            raise Malformed("a delta's spans do not make up its file")
        shared = [span for span in entry.spans if span.kind != "literal"]
        if any(span.size % (4 if span.kind == "f32" else 2) for span in shared if span.kind in FORMATS):
            raise Malformed("a delta's span holds part of a float")
        needed = entry.base_start + sum(span.size for span in shared)
        if shared and needed > base.size(entry.file.name):
            raise Malformed(f"the base holds no {entry.file.name} as long as the delta needs")


def plan_file(base: Path, new: Path) -> FilePlan:
    """Plan how to code one file: tensor by tensor when both hold the same tensors, otherwise whole. Raises OSError."""
    size, held = new.stat().st_size, base.stat().st_size if base.is_file() else 0
    tables = _tensor_table(base, held), _tensor_table(new, size)
    if tables[0] and tables[1] and tables[0][1] == tables[1][1] and size - tables[1][0] == held - tables[0][0]:
        starts = tables[0][0], tables[1][0]
        same = starts[0] == starts[1]
        head = [("bytes" if same else "literal", starts[1])]
        spans, start = [*head, *tables[1][1]], 0 if same else starts[0]
    else:
        spans, start = [("bytes" if size == held else "literal", size)], 0
    spans = _merge(spans)
    if len(spans) > MAX_SPANS:
        spans, start = [("literal", size)], 0
    return FilePlan(
        file=FileEntry(name=new.name, size=size),
        base_start=start,
        spans=tuple(Span.model_validate({"kind": kind, "size": length}) for kind, length in spans),
    )


def _tensor_table(path: Path, size: int) -> tuple[int, list[tuple[str, int]]] | None:
    """Where a safetensors file's data begins, and the kinds and lengths of its tensors; None for any other file."""
    if path.suffix != ".safetensors" or size < 8:
        return None
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(MAX_TABLE, size - 8):
            return None
        try:
            table = json.loads(file.read(length))
            return 8 + length, list(_tensors(table, size - 8 - length))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _tensors(table: dict[str, Any], size: int) -> Iterator[tuple[str, int]]:
    entries = [tensor for name, tensor in table.items() if name != "__metadata__"]
    position = 0
    for tensor in sorted(entries, key=lambda entry: tuple(entry["data_offsets"])):
        start, end = tensor["data_offsets"]
        width = 4 if tensor["dtype"] == "F32" else 2
        if start != position or end < start or end > size:
            raise ValueError("tensors are not laid end to end")
        kind = _KINDS.get(tensor["dtype"], "bytes")
        yield kind if (end - start) % width == 0 else "bytes", end - start
        position = end
    yield "bytes", size - position


def _merge(spans: list[tuple[str, int]]) -> list[tuple[str, int]]:
    merged: list[tuple[str, int]] = []
    for kind, length in spans:
        if merged and merged[-1][0] == kind:
            merged[-1] = kind, merged[-1][1] + length
        elif length:
            merged.append((kind, length))
    return merged
