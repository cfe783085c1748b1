"""Elements of a block grouped by the exponent of their base weight, which the decoder holds too.

An optimizer's step has about one size for all weights, so a weight's exponent sets how likely it is to leave its rounding
cell: within a class changes fall like a biased coin, between classes the bias differs by thousands. Most elements have
great exponents and next to no changes; they are never listed one by one.
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
"""Classes that hold less than this share of a block together are listed; the greater ones are bitmaps."""
DENSE_SHARE = 1 / 8
"""More changes than this share of the elements left: listing those is the cheaper way to them."""
TOP_SLACK = 0.004
"""Share of the cost that may be lost to have more elements in class 0: speed."""
MAX_CLASSES = 32
"""Twice what real checkpoints need; bounds what a hostile block costs to read."""
TABLE_BITS = 120.0
"""What one more class costs: its count and its two tables, about."""


def group_by_exponent(exponents: Bytes, thresholds: bytes, counts: Sequence[int]) -> list[Subset]:
    """Class 0 is `exponent >= thresholds[0]`, the next `>= thresholds[1]`, the last one all below. Strictly falling.

    `counts`: how many members of each class will be asked for; it sets how a class is held, not what it holds.
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
    """Classes from `start` on, listed."""
    positions = positions_of(exponents < thresholds[start - 1]) if start else np.arange(len(exponents))
    classes = class_of_exponent(thresholds)[exponents[positions]]
    ordered = positions[np.argsort(classes, kind="stable")]
    sizes = np.bincount(classes, minlength=len(thresholds) + 1)[start:]
    return [Listed(part) for part in np.split(ordered, np.cumsum(sizes)[:-1])]


def class_of_exponent(thresholds: bytes) -> Bytes:
    """256 classes, one an exponent."""
    falling = np.frombuffer(thresholds, np.uint8)
    classes: Bytes = (np.arange(256)[:, None] < falling[None, :]).sum(axis=1).astype(np.uint8)
    return classes


def choose_thresholds(elements: Integers, steps: Integers) -> bytes:
    """Where to cut. `elements`: how many have each exponent, (256,), a sample will do. `steps`: changes by exponent and
    symbol of the step, (256, symbols). From the greatest exponent down, an exponent joins the class above when that
    costs no more than a class of its own; the first class is given a little."""
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
    """Bits: entropy of which elements change, and of their steps."""
    changed = int(steps.sum())
    stay = max(elements - changed, 0)
    return _weigh(changed + stay) - _weigh(stay) - float(np.dot(steps, np.log2(np.maximum(steps, 1))))


def _weigh(count: int) -> float:
    """`n log2 n`: that of a total, less those of its parts, is the entropy of the parts."""
    return count * math.log2(count) if count else 0.0
