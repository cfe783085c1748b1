"""Sums over a node's submissions that honest nodes hardly ever drive up: CUSUM (Page 1954) of likelihood ratios.

There is one sum for each component and each ratio of deviation, `S = max(0, S + evidence)`. Since honest evidence has
`mean(exp(evidence)) <= 1`, the probability that one of k sums ever reaches `h + log(k)` within N submissions is at most
`N * exp(-h)` (Ville's inequality from each start, added up). For one false alarm in `rate` node-months of N
submissions, `h = log(N * rate)`: 3,000 a month and 1,000 give 14.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roles.toploc.joined.score import MOST_EVIDENCE

KEPT = 0.95  # factor on a node's sums while over the limit; understating a sum is always allowed


@dataclass(frozen=True, slots=True)
class History:
    """How far a node's submissions have deviated in total, in nats; empty sums mean nothing has been seen of it yet."""

    sums: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """The value compared with the limit: the largest sum, less the correction for there being several."""
        return max(0.0, max(self.sums) - math.log(len(self.sums))) if self.sums else 0.0

    def after(self, evidence: Sequence[float], *, limit: float) -> History:
        """The history after one more submission. Over the limit some is forgotten each time, so
        that honest work leads back."""
        kept = KEPT if self.total >= limit else 1.0
        before = [kept * each for each in self.sums] if len(self.sums) == len(evidence) else [0.0] * len(evidence)
        most = limit + math.log(max(1, len(evidence))) + MOST_EVIDENCE
        return History(tuple(min(max(0.0, s + e), most) for s, e in zip(before, evidence, strict=True)))


def history_limit(*, submissions: int, one_in: int) -> float:
    """The total that at most one honest node in `one_in` reaches within this many submissions (a month's). In nats."""
    return math.log(max(1, submissions) * max(1, one_in))
