"""How many submissions of a node are judged at once, and how soon, so that nodes share the engine's time.

Scoring an answer may time out on honest machines too, so a timeout is never a fault and is retried. A node that submits
many such answers is judged one at a time, with growing pauses, until one of its submissions is accepted.
"""

from __future__ import annotations

from collections import Counter

from roles.ports import Clock
from roles.rules import Reason
from roles.verification import Finding

OF_NODE = 2
"""Submissions of a node judged at once: one is being fetched while the other is judged."""
FIRST_MS, LONGEST_MS = 2_000, 600_000
"""Shortest and longest pause after a submission that took too long to score."""


class Pacing:
    """Limits on judging, by node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy: Counter[str] = Counter()
        self._slow: dict[str, tuple[int, int]] = {}  # count of slow submissions, and until when the node waits

    def begin(self, node: str) -> bool:
        """Whether one more submission of the node may be judged now; if so, call `end` afterwards."""
        slow, until = self._slow.get(node, (0, 0))
        if self._busy[node] >= (1 if slow else OF_NODE) or 0 < until - self._clock() <= LONGEST_MS:
            return False
        self._busy[node] += 1
        return True

    def end(self, node: str, finding: Finding | None) -> None:
        """Record that a submission of the node was judged, or with `finding` None that it could not be."""
        self._busy[node] -= 1
        if not self._busy[node]:
            del self._busy[node]
        slow, _ = self._slow.get(node, (0, 0))
        if finding is not None and finding.reason is Reason.SCORING_TIMEOUT:
            self._slow[node] = slow + 1, self._clock() + min(FIRST_MS * 2 ** min(slow, 10), LONGEST_MS)
        elif finding is not None and finding.outcome == "accept" and slow:
            self._slow[node] = slow - 1, 0
            if slow == 1:
                del self._slow[node]
