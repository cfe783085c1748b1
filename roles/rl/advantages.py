"""Group-relative advantages: how much better each completion was than its siblings of the same prompt."""

import math
from collections.abc import Sequence

STD_EPSILON = 1e-6  # keeps the division finite; far below the spread of any group that disagrees


def compute_advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Return (R - mean) / (std + 1e-6) with the unbiased std (n - 1), as INTELLECT-2 does (GRPO, arXiv 2402.03300).

    `[0, 0, 1, 1] -> [-0.866, -0.866, 0.866, 0.866]` (mean 0.5, std 0.577); `[1, 0] -> [0.707, -0.707]`;
    `[1, 1, 1, 1] -> zeros`: a group that agrees teaches nothing. A group of one is also zero. The sum is 0 up to
    rounding.
    Raises ValueError on a reward that is NaN or infinite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("a reward is not a finite number")
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return tuple((reward - mean) / (std + STD_EPSILON) for reward in rewards)
