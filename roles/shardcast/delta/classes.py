"""Groups the elements of a block by the exponent of their base weight, which the decoder has too.

An optimizer's step has about the same size for all weights, so a weight's exponent sets how likely it is to leave its
rounding cell. Within a class, changes behave like a biased coin; between classes the bias differs by factors of
thousands. Most elements have large exponents and almost no changes, so they are never listed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roles.shardcast.delta.rank import Listed, Subset, bitmap, pack_words, positions_of

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SMALL_SHARE = 1 / 32
"""Classes that together hold less than this share of a block are listed; the larger ones are bitmaps."""
DENSE_SHARE = 1 / 8
"""When more than this share of the remaining elements changes, listing them is cheaper."""
TOP_SLACK = 0.004
"""Share of the cost that may be given up to put more elements into class 0, for speed."""
MAX_CLASSES = 32
"""Twice what real checkpoints need; limits the cost of reading a hostile block."""
TABLE_BITS = 120.0
"""Approximate cost in bits of one more class: its count and its two tables."""


def group_by_exponent(exponents: Bytes, thresholds: bytes, counts: Sequence[int]) -> list[Subset]:
    """Class 0 is `exponent >= thresholds[0]`, the next `>= thresholds[1]`, the last one everything below. Thresholds
    must be strictly falling.

    `counts`: how many members of each class will be requested. It decides how a class is represented, not its members.
    """
    subsets: list[Subset] = []
    left, above = len(exponents), np.zeros(-(-len(exponents) // 64), np.uint64)
    mask = np.empty(len(exponents), np.bool_)
    for threshold, count in zip(thresholds, counts, strict=False):
        if left < SMALL_SHARE * len(exponents) or count > DENSE_SHARE * left:
            break
        words = pack_words(np.greater_equal(exponents, threshold, out=mask))
        subsets.append(bitmap(words & ~above))
        left, above = left - subsets[-1].size, words
    return subsets + _list_classes(exponents, thresholds, start=len(subsets))


def _list_classes(exponents: Bytes, thresholds: bytes, *, start: int) -> list[Subset]:
    """Classes from `start` on, as lists."""
    positions = positions_of(exponents < thresholds[start - 1]) if start else np.arange(len(exponents))
    classes = class_of_exponent(thresholds)[exponents[positions]]
    ordered = positions[np.argsort(classes, kind="stable")]
    sizes = np.bincount(classes, minlength=len(thresholds) + 1)[start:]
    return [Listed(part) for part in np.split(ordered, np.cumsum(sizes)[:-1])]


def class_of_exponent(thresholds: bytes) -> Bytes:
    """The class of each of the 256 exponents."""
    falling = np.frombuffer(thresholds, np.uint8)
    classes: Bytes = (np.arange(256)[:, None] < falling[None, :]).sum(axis=1).astype(np.uint8)
    return classes


def choose_thresholds(elements: Integers, steps: Integers) -> bytes:
    """Choose the class boundaries. `elements`: number of elements by exponent, (256,); a sample suffices. `steps`:
    changes by exponent and step symbol, (256, symbols). From the largest exponent down, an exponent joins the class
    above when that costs no more than a class of its own; the first class gets some slack."""
    present = [int(e) for e in np.flatnonzero(steps.sum(axis=1))[::-1]]
    if not present:
        return b""
    costs = {e: _cost(int(elements[e]), steps[e]) for e in present}
    slack = TOP_SLACK * sum(costs.values())
    cuts: list[int] = []
    size, counts, cost = int(elements[present[0] :].sum()), steps[present[0]], costs[present[0]]
    above = present[0]
    for e in present[1:]:
        joined = _cost(size + int(elements[e:above].sum()), counts + steps[e])
        apart = cost + costs[e] + TABLE_BITS
        if joined <= apart + (0 if cuts else slack) or len(cuts) == MAX_CLASSES - 1:
            size, counts, cost = size + int(elements[e:above].sum()), counts + steps[e], joined
        else:
            cuts.append(e + 1)
            size, counts, cost = int(elements[e:above].sum()), steps[e], costs[e]
        above = e
    return bytes(cuts)


def _cost(elements: int, steps: Integers) -> float:
    """Cost in bits: the entropy of which elements change, and of their steps."""
    changed = int(steps.sum())
    stay = max(elements - changed, 0)
    return _weigh(changed + stay) - _weigh(stay) - float(np.dot(steps, np.log2(np.maximum(steps, 1))))


def _weigh(count: int) -> float:
    """`n log2 n`: its value for a total, less those for the parts, is the entropy of the parts."""
    return count * math.log2(count) if count else 0.0
