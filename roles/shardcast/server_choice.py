"""Which relay to ask: drawn at random in proportion to success rate times bandwidth, both moving averages (INTELLECT-2,
section 3.2). Knows no network: callers report outcomes.

A failure counts as bandwidth 0, never as the timeout's length (WGT-03). A healing term and a floor keep every relay in
the draw, so that one that recovers is found again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NEWEST = 0.3
"""Weight of the newest observation in both averages."""
HEALING = 0.01
FLOOR = 0.02
"""Minimum weight of a relay, as a share of the best one's."""
FIRST_GUESS = 1e6
"""Bytes per second assumed of the very first relay."""
SMALLEST_SAMPLE = 64 * 1024
"""Below this many bytes a transfer measures latency, not bandwidth."""
BAN_SECONDS = 60.0
MAX_RELAYS = 4096
WELL = 0.5
"""Success rate; two failures in a row bring 1.0 to 0.49."""


@dataclass(slots=True)
class Score:
    """The estimate for one relay: success rate in [0, 1], bytes per second."""

    success: float
    bandwidth: float
    banned_until: float = 0.0
    offences: int = 0
    is_measured: bool = False


UNKNOWN = Score(1.0, FIRST_GUESS)


class ServerChoice:
    """Scores of relays by node id."""

    def __init__(self, *, draw: random.Random | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._scores: dict[str, Score] = {}
        self._draw = draw or random.Random()
        self._clock = clock

    def score(self, relay: str) -> Score:
        """The relay's score. A new one starts trusted, and is assumed to be as fast as the mean of the others
        until it has been measured."""
        if relay not in self._scores:
            if len(self._scores) >= MAX_RELAYS:
                self._scores.pop(next(iter(self._scores)))
            self._scores[relay] = Score(1.0, FIRST_GUESS)
        score = self._scores[relay]
        if not score.is_measured:
            score.bandwidth = self._guess()
        return score

    def _guess(self) -> float:
        """Bandwidth assumed of an unmeasured relay, in bytes per second."""
        known = [score.bandwidth for score in self._scores.values() if score.is_measured]
        return sum(known) / len(known) if known else FIRST_GUESS

    def succeeded(self, relay: str, *, size: int, seconds: float) -> None:
        """Record a successful transfer of `size` bytes."""
        score = self.score(relay)
        score.success = NEWEST + (1 - NEWEST) * score.success
        if size >= SMALLEST_SAMPLE:
            score.is_measured = True
            score.bandwidth = NEWEST * size / max(seconds, 1e-4) + (1 - NEWEST) * score.bandwidth
        self._heal(relay)

    def failed(self, relay: str) -> None:
        """Record a failed transfer, as 0 for success and 0 for bandwidth."""
        score = self.score(relay)
        score.success *= 1 - NEWEST
        score.is_measured = True
        score.bandwidth *= 1 - NEWEST
        self._heal(relay)

    def cheated(self, relay: str) -> None:
        """Ban a relay that served wrong bytes from the draw: for a minute, twice as long each time."""
        self.failed(relay)
        score = self.score(relay)
        score.offences += 1
        score.banned_until = self._clock() + BAN_SECONDS * 2 ** min(score.offences - 1, 10)

    def is_banned(self, relay: str) -> bool:
        """Whether the relay is banned for having served wrong bytes."""
        score = self._scores.get(relay)
        return score is not None and score.banned_until > self._clock()

    def is_well(self, relay: str) -> bool:
        """Whether the relay has not just failed twice; only then is a hint that names it followed."""
        score = self._scores.get(relay)
        return score is None or score.success >= WELL

    def weights(self, relays: Iterable[str]) -> dict[str, float]:
        """Weight of each relay in the draw; banned ones are left out."""
        products: dict[str, float] = {}
        guess = self._guess()
        for relay in relays:
            if not self.is_banned(relay):
                score = self._scores.get(relay, UNKNOWN)
                products[relay] = score.success * (score.bandwidth if score.is_measured else guess)
        floor = max(max(products.values(), default=0.0) * FLOOR, 1e-9)
        return {relay: max(product, floor) for relay, product in products.items()}

    def order(self, relays: Iterable[str]) -> list[str]:
        """The relays in the order to try them: drawn one by one, without replacement."""
        weights = self.weights(relays)
        # Exponential races: sorting by Exp(1)/weight is sequential weighted sampling without replacement.
        return sorted(weights, key=lambda relay: self._draw.expovariate(1.0) / weights[relay])

    def _heal(self, but: str) -> None:
        for relay, score in self._scores.items():
            if relay != but:
                score.success = min(1.0, score.success + HEALING)
