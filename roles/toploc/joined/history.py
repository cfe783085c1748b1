"""A sum over a node's submissions that honest nodes hardly ever drive up: CUSUM (Page 1954) of likelihood ratios.

`S = max(0, S + evidence)`. Since honest evidence has `mean(exp(evidence)) <= 1`, the chance that S ever reaches `h` within N
submissions is at most `N * exp(-h)` (Ville's inequality from each start, added up). With one false alarm in `rate` node-months
of N submissions, `h = log(N * rate)`: 3,000 a month and 1,000 give 14.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roles.toploc.joined.score import MOST_EVIDENCE


@dataclass(frozen=True, slots=True)
class History:
    """How far a node's submissions have deviated together, in nats."""

    total: float = 0.0

    def after(self, evidence: float, *, limit: float) -> History:
        """With one more submission. Never so far above the limit that honest work could not lead back."""
        return History(min(max(0.0, self.total + evidence), limit + MOST_EVIDENCE))


def history_limit(*, submissions: int, one_in: int) -> float:
    """The sum that at most one honest node in `one_in` reaches within so many submissions (a month's). Nats."""
    return math.log(max(1, submissions) * max(1, one_in))
