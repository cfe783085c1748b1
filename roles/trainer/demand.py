"""How much work the head asks for: share and limit of an open step. Pure.

The share is fixed when a step opens and thins demand out when thousands work; the limit rises while a batch is short.
"""

from __future__ import annotations

from roles.messages import SHARE_ALL
from roles.spec import RunSpec

SURPLUS = 2
"""Times the groups a batch needs that the first limit asks for: some are late, some refused."""
USABLE_PRIOR = 0.5
LEAST_USABLE = 0.05
MAX_LIMIT = 1_000_000


def estimate_usable(usable: int, looked_at: int) -> float:
    """Fraction of groups that teach something, with two groups' worth of prior: `(0, 0) -> 0.5`, `(3, 6) -> 0.5`."""
    return max(LEAST_USABLE, (usable + 2 * USABLE_PRIOR) / (looked_at + 2))


def compute_share(spec: RunSpec, *, workers: int, usable_fraction: float) -> int:
    """Share (of 2**64) of a step that opens, with `workers` seen at work lately."""
    training = spec.training
    supply = workers * training.initial_limit * spec.sampling.groups_per_submission
    demand = SURPLUS * min(training.max_groups, training.batch_groups / usable_fraction)
    if supply <= demand:
        return SHARE_ALL
    return max(1, int(SHARE_ALL * demand / supply))


def is_more_wanted(spec: RunSpec, *, usable: int, pending: int, usable_fraction: float) -> bool:
    """Whether the batch stays short even if all `pending` groups (handed in, not judged) are accepted."""
    return usable + pending * usable_fraction < spec.training.batch_groups


def raised_limit(spec: RunSpec, limit: int) -> int:
    """The next limit: `initial_limit` more."""
    return min(MAX_LIMIT, limit + spec.training.initial_limit)
