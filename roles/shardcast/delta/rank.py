"""Rank and select over a subset of a block's elements: an element's index within the subset, and the inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

SELECT_BIT = np.array([([bit for bit in range(8) if byte >> bit & 1] + [0] * 8)[:8] for byte in range(256)], np.int64)
"""Position of the n-th set bit of a byte, (256, 8)."""


class Subset(Protocol):
    """Elements of one class, ordered by position."""

    @property
    def size(self) -> int:
        """Number of members."""
        ...

    def rank(self, positions: Integers, mask: NDArray[np.bool_]) -> Integers:
        """Positions of members, ascending -> the number of members before each. `mask` has an entry for each element of
        the block and is true exactly for these members."""
        ...

    def select(self, ranks: Integers) -> Integers:
        """Inverse of `rank`; ranks are below `size`."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A subset as a list of positions: for small ones, or when most members are requested."""

    positions: Integers

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.positions)

    def rank(self, positions: Integers, mask: NDArray[np.bool_]) -> Integers:
        """Look up the mask at all members in order, which is several times faster than bisection."""
        return np.flatnonzero(mask[self.positions])

    def select(self, ranks: Integers) -> Integers:
        """Index the list."""
        return self.positions[ranks]


@dataclass(frozen=True, slots=True)
class Bitmap:
    """A subset as one bit per element in 64-bit words, with the number of members before each word. Used for large
    subsets of which few members are requested; nothing is listed."""

    words: Words
    before: Integers

    @property
    def size(self) -> int:
        """Number of members."""
        return int(self.before[-1])

    def rank(self, positions: Integers, mask: NDArray[np.bool_]) -> Integers:
        """Members before the word, plus those in the word below the bit."""
        word = positions >> 6
        below = (np.uint64(1) << (positions & 63).astype(np.uint64)) - np.uint64(1)
        ranks: Integers = self.before[word] + np.bitwise_count(self.words[word] & below)
        return ranks

    def select(self, ranks: Integers) -> Integers:
        """Find the word by bisection, the byte by prefix sums of its bytes' counts (one
        multiplication), the bit by table."""
        word = np.searchsorted(self.before, ranks, side="right") - 1
        found = self.words[word].astype("<u8")
        sums = np.bitwise_count(found.view(np.uint8)).view("<u8") * np.uint64(0x0101010101010101)
        left, each = (ranks - self.before[word]).astype(np.uint8), np.arange(len(word))
        byte = np.bitwise_count((sums.view(np.uint8).reshape(-1, 8) <= left[:, None]).view("<u8").ravel())
        left -= (sums << np.uint64(8)).view(np.uint8).reshape(-1, 8)[each, byte]
        bit = SELECT_BIT[found.view(np.uint8).reshape(-1, 8)[each, byte], left]
        positions: Integers = 64 * word + 8 * byte + bit
        return positions


def positions_of(mask: NDArray[np.bool_]) -> Integers:
    """Positions where a mask is true. Most of its 8-element words are all false, so only the others are searched."""
    whole = len(mask) // 8 * 8
    words = mask[:whole].view(np.uint64)
    some = np.flatnonzero(words != 0)
    found = np.flatnonzero(words[some].view(np.bool_))
    return np.concatenate([8 * some[found >> 3] + (found & 7), whole + np.flatnonzero(mask[whole:])])


def pack_words(mask: NDArray[np.bool_]) -> Words:
    """Pack 64 elements into a word, the first in the lowest bit, padded with zeros."""
    packed = np.packbits(mask, bitorder="little")
    padded = np.zeros(-(-len(mask) // 64) * 8, np.uint8)
    padded[: len(packed)] = packed
    return padded.view("<u8").astype(np.uint64, copy=False)


def bitmap(words: Words) -> Bitmap:
    """Build a bitmap by counting the members before each word."""
    before = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.bitwise_count(words), out=before[1:])
    return Bitmap(words, before)
