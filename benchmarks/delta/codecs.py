"""Sizes in bytes that other codecs, and the theoretical bounds, give for the change
between two bfloat16 checkpoints."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Integers = NDArray[np.int64]


def read_bits(directory: Path) -> Bits:
    """All elements of an all-bfloat16 checkpoint, in file order."""
    data = np.fromfile(directory / "model.safetensors", np.uint8)
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    return data[8 + length :].view("<u2")


def other_sizes(base: Bits, new: Bits) -> tuple[float, dict[str, float]]:
    """The share of elements that changed, and bytes by codec and bound."""
    changed = np.flatnonzero(base != new)
    values, gaps = new[changed].tobytes(), np.diff(changed, prepend=-1) - 1
    return len(changed) / len(base), {
        "raw_zstd": _zstd(changed.astype(np.uint32).tobytes() + values),
        "gaps_zstd": _zstd(gaps.astype(np.uint32).view(np.uint8).reshape(-1, 4).T.tobytes()) + _zstd(values),
        "xor_zstd": _zstd((base ^ new).tobytes()),
        "blind_bound": bound_bytes(base, new, changed, np.zeros(len(base), np.uint8)),
        "given_bound": bound_bytes(base, new, changed, (base >> 7).astype(np.uint8)),
    }


def bound_bytes(base: Bits, new: Bits, changed: Integers, classes: NDArray[np.uint8]) -> float:
    """Entropy of positions and steps within each class, in bytes."""
    steps, hit = _ordered(new[changed]) - _ordered(base[changed]), classes[changed]
    sizes, hits = np.bincount(classes, minlength=256), np.bincount(hit, minlength=256)
    bits = sum(_entropy(np.array([a, b - a])) for a, b in zip(hits, sizes, strict=True) if a)
    bits += sum(_entropy(np.unique(steps[hit == k], return_counts=True)[1]) for k in np.flatnonzero(hits))
    return bits / 8


def _ordered(bits: Bits) -> Integers:
    wide = bits.astype(np.int64)
    return np.where(wide & 0x8000, 0x8000 - (wide & 0x7FFF), 0x8000 + wide)


def _entropy(counts: Integers) -> float:
    some = counts[counts > 0].astype(np.float64)
    return float(-(some * np.log2(some / some.sum())).sum())


def _zstd(data: bytes) -> int:
    return len(pa.Codec("zstd", compression_level=3).compress(data, asbytes=True))
