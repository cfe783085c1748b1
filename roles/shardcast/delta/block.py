"""One block of a tensor's elements: coded against the same block of the base, and rebuilt from it.

For each class (`classes`), the gaps between changed elements and their steps are coded. A step is the change of the
magnitude in ordered-integer space, plus one flag for a change of sign, so that a weight near zero pushed across zero is
coded like one pushed the same distance on its own side.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dht.errors import Malformed
from roles.shardcast.delta.classes import MAX_CLASSES, choose_thresholds, class_of_exponent, group_by_exponent
from roles.shardcast.delta.rank import Subset, positions_of
from roles.shardcast.delta.symbols import (
    VALUE_SYMBOLS,
    build_tables,
    decode_streams,
    encode_streams,
    join_values,
    pack_low,
    split_values,
    symbol_widths,
    table_length,
    unpack_low,
)

Integers = NDArray[np.int64]
Bits = NDArray[np.uint16] | NDArray[np.uint32]

SAMPLE = 16
"""One element in so many is sampled to choose the classes."""


@dataclass(frozen=True, slots=True)
class Format:
    """A float's bits: sign, 8 bits of exponent, `mantissa` bits."""

    name: str
    dtype: str
    mantissa: int

    @property
    def sign(self) -> int:
        """Mask of the sign bit."""
        return 1 << (self.mantissa + 8)

    def view(self, data: bytes | bytearray) -> Bits:
        """Bytes as unsigned integers."""
        return np.frombuffer(data, self.dtype)

    def exponents(self, bits: Bits) -> NDArray[np.uint8]:
        """The biased exponents."""
        exponents = np.empty(len(bits), np.uint8)
        np.right_shift(bits, self.mantissa, out=exponents, casting="unsafe")  # the cast drops the sign
        return exponents


BF16, F32 = Format("bf16", "<u2", 7), Format("f32", "<u4", 23)


def encode_block(base: bytes, new: bytes, form: Format) -> tuple[bytes, int]:
    """The coded block and the number of changed elements. Both blocks have the same length."""
    before, after = form.view(base), form.view(new)
    mask = before != after
    changed = positions_of(mask)
    exponents = form.exponents(before)
    symbols, widths, low = split_steps(before[changed], after[changed], form)
    hits = exponents[changed]
    sample = SAMPLE * np.bincount(exponents[::SAMPLE], minlength=256)
    used = 1 + int(symbols.max(initial=0))
    joint = np.bincount(hits.astype(np.int64) * used + symbols, minlength=256 * used)
    thresholds = choose_thresholds(sample, joint.reshape(256, used))
    classes = class_of_exponent(thresholds)[hits]
    counts = np.bincount(classes, minlength=len(thresholds) + 1).tolist()
    order = np.argsort(classes, kind="stable")
    subsets = group_by_exponent(exponents, thresholds, counts)
    ranks = [subset.rank(part, mask) for subset, part in zip(subsets, _split(changed[order], counts), strict=True)]
    gaps = np.concatenate([np.diff(part, prepend=-1) - 1 for part in ranks])
    gap_symbols, gap_widths, gap_low = split_values(gaps)
    head = bytes([len(counts)]) + thresholds + struct.pack(f"<{len(counts)}I", *counts)
    classed = zip(_split(gap_symbols, counts), _split(symbols[order], counts), strict=True)
    streams = [part for both in classed for part in both if len(part)]
    tables = build_tables(streams)
    words = encode_streams(zip(streams, tables, strict=True))
    tail = pack_low(np.concatenate([gap_widths, widths[order]]), np.concatenate([gap_low, low[order]]))
    return head + b"".join(tables) + struct.pack("<I", len(words)) + words + tail, len(changed)


def split_steps(before: Bits, after: Bits, form: Format) -> tuple[Integers, Integers, Integers]:
    """Symbols, widths and low bits of the steps between two arrays of bits."""
    mask = form.sign - 1
    grown = (after & mask).astype(np.int64) - (before & mask).astype(np.int64)
    symbols, widths, low = split_values(np.abs(grown))
    flipped = ((before ^ after) & form.sign) != 0
    return 4 * symbols + 2 * flipped + (grown < 0), widths, low


def decode_block(base: bytes | bytearray, data: bytes, form: Format) -> memoryview:
    """The new block, written over the base where that is writable.

    Raises Malformed on a block that no encoder made. Holds a few integers per element, whatever the block says.
    """
    before = form.view(base)
    reader = _Reader(data)
    classes = reader.byte()
    thresholds = reader.take(max(classes - 1, 0))
    if not 1 <= classes <= MAX_CLASSES or any(a <= b for a, b in pairwise(thresholds)):
        raise Malformed("classes of a delta's block are out of order")
    counts = struct.unpack(f"<{classes}I", reader.take(4 * classes))
    subsets = group_by_exponent(form.exponents(before), thresholds, counts)
    if any(count > subset.size for count, subset in zip(counts, subsets, strict=True)):
        raise Malformed("a delta's block changes more elements than a class has")
    wanted = [(count, reader.table()) for count in counts if count for _ in range(2)]
    streams = decode_streams(reader.take(struct.unpack("<I", reader.take(4))[0]), wanted)
    gaps, steps = _join(streams[::2]), _join(streams[1::2])
    if len(gaps) and gaps.max() >= VALUE_SYMBOLS - 2:
        raise Malformed("a delta's gap is beyond 31 bits")
    if len(steps) and steps.max() >= 4 * (VALUE_SYMBOLS - 2):
        raise Malformed("a delta's step is beyond 31 bits")
    magnitudes = steps >> 2
    low = unpack_low(np.concatenate([symbol_widths(gaps), symbol_widths(magnitudes)]), reader.rest())
    ranks = _split(join_values(gaps, low[: len(gaps)]) + 1, counts)
    changed = _place_changes(subsets, [np.cumsum(part) - 1 for part in ranks])
    return _take_steps(before, changed, steps, join_values(magnitudes, low[len(gaps) :]), form)


def _place_changes(subsets: list[Subset], ranks: list[Integers]) -> Integers:
    """Positions of the changed elements, class by class."""
    if any(len(part) and part[-1] >= subset.size for subset, part in zip(subsets, ranks, strict=True)):
        raise Malformed("a delta's block changes an element beyond its class")
    return np.concatenate([subset.select(part) for subset, part in zip(subsets, ranks, strict=True)])


def _take_steps(before: Bits, changed: Integers, steps: Integers, magnitudes: Integers, form: Format) -> memoryview:
    old = before[changed].astype(np.int64)
    grown = (old & (form.sign - 1)) + magnitudes * (1 - 2 * (steps & 1))
    if len(grown) and not (grown.min() >= 0 and grown.max() < form.sign):
        raise Malformed("a delta's step leaves the float's range")
    after = before if before.flags.writeable else before.copy()
    after[changed] = grown | ((old ^ (steps & 2) * (form.sign >> 1)) & form.sign)
    return after.data.cast("B")


def _join(parts: list[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _split(values: Integers, counts: Sequence[int]) -> list[Integers]:
    return np.split(values, np.cumsum(counts)[:-1])


class _Reader:
    """Takes bytes from the front, never more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise Malformed("a delta's block is cut")
        self._at += length
        return self._data[self._at - length : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def table(self) -> bytes:
        first = self.byte()
        return bytes([first]) + self.take(table_length(first))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)
