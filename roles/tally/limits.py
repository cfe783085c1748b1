"""How much a tally may contain, so that the next one always fits: rows, bytes, and leaves, which are never dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from roles.messages import Role
from roles.tally.body import MAX_BODY, MAX_ROWS, TallyBody

MOST_LEAVES: Mapping[Role, int] = {"worker": 60_000, "relay": 30_000}
"""Number of leaves of a role beyond which no new node is credited in it. Validators and trainers are
few and the owner's choice."""
LEAF_BYTES, PLACE_BYTES, ROW_BYTES, HEADER_BYTES = 240, 72, 24, 2**16
"""Maximum bytes in the body of a leaf, a place, a row besides its text, and everything else
(including validators' leaves)."""
NEW_BYTES = 2**24
"""Maximum bytes that an epoch's rows add to the body besides themselves: leaves and places."""


@dataclass(frozen=True, slots=True)
class TallyLimits:
    """Bytes of a body, bytes of its signed rows, leaves by role. These are rules of the protocol;
    other values are for tests."""

    body: int = MAX_BODY
    rows: int = MAX_ROWS
    leaves: Mapping[Role, int] = field(default_factory=lambda: MOST_LEAVES)

    def most_bytes(self, parent: TallyBody | None) -> int:
        """Maximum unpacked size of an honest tally: the parent's leaves and places, the new items, and theirs. A
        dishonest proposer must not keep every validator busy parsing."""
        return min(self.body, self.rows + NEW_BYTES + _kept_bytes(parent))

    def bytes_for_rows(self, parent: TallyBody | None) -> int:
        """Bytes of a body left for rows and their places, after reserving space for all
        leaves that may still be added."""
        held = Counter(leaf.role for leaf in (parent.leaves if parent else ()))
        coming = sum(max(0, most - held[role]) for role, most in self.leaves.items())
        return max(0, self.body - HEADER_BYTES - _kept_bytes(parent) - LEAF_BYTES * coming)


LIMITS = TallyLimits()


class Room:
    """The space left for rows in one tally."""

    def __init__(self, limits: TallyLimits, parent: TallyBody | None) -> None:
        self._rows, self._bytes = limits.rows, min(limits.bytes_for_rows(parent), limits.rows + NEW_BYTES)

    def has(self, *texts: str) -> bool:
        """Whether these rows, counted as one place, fit."""
        size, cost = _costs(texts)
        return size <= self._rows and cost <= self._bytes

    def take(self, *texts: str) -> bool:
        """Reserve space for these rows. Returns whether they fit."""
        if not self.has(*texts):
            return False
        size, cost = _costs(texts)
        self._rows -= size
        self._bytes -= cost
        return True


def _costs(texts: tuple[str, ...]) -> tuple[int, int]:
    size = sum(map(len, texts))
    return size, size + ROW_BYTES * len(texts) + PLACE_BYTES


def _kept_bytes(parent: TallyBody | None) -> int:
    """Bytes of the parent's leaves and places. A leaf that earned without a wallet needs a second
    one once there is a wallet."""
    if parent is None:
        return 0
    to_move = sum(leaf.wallet is None and leaf.amount > 0 for leaf in parent.leaves)
    return LEAF_BYTES * (len(parent.leaves) + to_move) + PLACE_BYTES * sum(map(len, parent.credited))
