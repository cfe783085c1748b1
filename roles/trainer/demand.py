"""How much work the head asks for: limit and share of an open step. Pure.

Surplus work costs workers and validators twice and ages the rollouts that are trained on. A step therefore opens with
what its batch is expected to lack, and the limit rises while the batch is short. The share is fixed when the step
opens; it thins out demand when there are more workers than indices wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roles.messages import SHARE_ALL
from roles.spec import RunSpec
from roles.trusted import MAX_INDICES

SURPLUS = 1.25
"""How many times the missing groups are requested, because some come late and some are refused."""
LEAST_FRESH = 0.25
"""Part of a batch that is always requested, however much is in hand, so that fresh rollouts keep coming."""
FEWEST_ADMITTED = 8
"""Minimum number of indices that a share admits on average: with fewer, a step might open with no work for anybody."""
USABLE_PRIOR = 0.5
LEAST_USABLE = 0.05


@dataclass(frozen=True, slots=True)
class Demand:
    """Index `i` of a node is wanted when `i < limit` and its seed's draw is below `share` (of 2**64)."""

    limit: int
    share: int


def estimate_usable(usable: int, looked_at: int) -> float:
    """Fraction of groups that teach something, with two groups' worth of prior: `(0, 0) -> 0.5`, `(3, 6) -> 0.5`."""
    return max(LEAST_USABLE, (usable + 2 * USABLE_PRIOR) / (looked_at + 2))


def open_demand(spec: RunSpec, *, workers: int, usable_fraction: float, in_hand: float) -> Demand:
    """Demand of a step that opens. `workers` were active lately; `in_hand` usable groups are already expected.

    Example: 16 groups wanted of which half are usable, nothing in hand, 2 workers, 4 groups per index: 40 groups, limit
    5 (at most `initial_limit`). With 100 workers: limit 1, share a tenth. Up to eight workers are always all admitted.
    """
    training = spec.training
    if workers == 0:
        return Demand(training.initial_limit, SHARE_ALL)
    lacking = max(LEAST_FRESH * training.batch_groups, SURPLUS * training.batch_groups - in_hand)
    each = lacking / usable_fraction / (workers * spec.sampling.groups_per_submission)
    if each < 1:
        return Demand(1, max(1, int(SHARE_ALL * min(1.0, max(each, FEWEST_ADMITTED / workers)))))
    return Demand(min(training.initial_limit, math.ceil(each)), SHARE_ALL)


def raised_limit(
    spec: RunSpec, opened: Demand, *, workers: int, usable: int, pending: int, usable_fraction: float
) -> int:
    """The new limit: higher while the batch would stay short even with all `pending` groups
    (submitted, not judged) counted."""
    lacking = spec.training.batch_groups - usable - pending * usable_fraction
    if lacking <= 0:
        return opened.limit
    per_index = max(1, workers) * spec.sampling.groups_per_submission * opened.share / SHARE_ALL
    more = math.ceil(SURPLUS * lacking / usable_fraction / per_index)
    raised = opened.limit + max(1, min(spec.training.initial_limit, more))
    return max(opened.limit, min(MAX_INDICES, raised))
