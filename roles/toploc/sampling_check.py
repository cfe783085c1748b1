"""Checks that tokens are those that seeded sampling gives: Token-DiFR margins (arXiv 2511.20621),
endings, and the two-hump test.

TOPLOC alone lets a small model decode and the large one prefill (TOP-24). Here every token is compared with the one
that the validator's own logits and the assigned seed give. Knows nothing of files, tasks or penalties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roles.toploc.verify import Judgement

MARGIN_CAP = 5.0  # the most that a single extreme token contributes to a mean
LOW, HIGH = 0.1, 0.9
LEAST_TOKENS, LOW_SHARE, HIGH_SHARE, EXCESS = 30, 0.2, 0.5, 8.0
"""When probabilities count as two-humped: minimum tokens, minimum shares below LOW and above
HIGH, standard deviations."""

Margins = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SamplingStatistics:
    """Margins of one completion. `mean_clipped` is the mean of `min(margin, 5)`."""

    tokens: int
    exact_share: float
    mean_clipped: float
    largest: float


@dataclass(frozen=True, slots=True)
class SamplingThresholds:
    """The largest statistics of one completion that still pass. `largest` catches a single altered token among many."""

    mean_clipped: float
    largest: float

    def admits(self, statistics: SamplingStatistics) -> bool:
        """Whether neither limit is exceeded."""
        return statistics.mean_clipped <= self.mean_clipped and statistics.largest <= self.largest


def summarise_margins(margins: Margins) -> SamplingStatistics:
    """Statistics of one completion. Without tokens all pass."""
    if not margins.size:
        return SamplingStatistics(tokens=0, exact_share=1.0, mean_clipped=0.0, largest=0.0)
    return SamplingStatistics(
        tokens=margins.size,
        exact_share=float((margins <= 0).mean()),
        mean_clipped=float(np.minimum(margins, MARGIN_CAP).mean()),
        largest=float(margins.max()),
    )


def judge_sampling(
    completions: Iterable[SamplingStatistics], *, honest: SamplingThresholds, fraud: SamplingThresholds
) -> Judgement:
    """Fraud when any completion exceeds the fraud thresholds; honest when all are within the honest ones."""
    statistics = list(completions)
    if not all(fraud.admits(item) for item in statistics):
        return Judgement.FRAUD
    return Judgement.HONEST if all(honest.admits(item) for item in statistics) else Judgement.DOUBTFUL


def find_termination_fault(output: Sequence[int], finish: str, *, eos: int, max_tokens: int) -> str | None:
    """Why a completion cannot have ended as it claims, or None.

    Whether seeded sampling gives the final end token shows in the last token's margin, which is held to `largest`.
    """
    if not output:
        return "empty completion"
    if len(output) > max_tokens:
        return "longer than the maximum"
    if eos in output[:-1]:
        return "tokens after the end token"
    if finish == "eos":
        return None if output[-1] == eos else "says it ended but has no end token"
    if output[-1] == eos:
        return "has an end token but says it ran to length"
    return None if len(output) == max_tokens else "stopped before the maximum without an end token"


def is_two_humped(logprobs: Margins, unlikely: Margins) -> bool:
    """Whether chosen-token probabilities have one hump near 1 and one near 0: another model
    decoded and this one prefilled.

    Some tokens below 0.1 are honest chance, and a flat policy gives many. They therefore count only when they exceed
    what the policy itself gives, `sum over positions of the mass below 0.1`, by `EXCESS` standard deviations.
    Arguments, for each token `[T]`: its log-probability, and that mass (`roles.toploc.readings`).
    """
    count = len(logprobs)
    if count < LEAST_TOKENS:
        return False
    chosen = np.exp(logprobs)
    low, high = int((chosen < LOW).sum()), int((chosen > HIGH).sum())
    if low < LOW_SHARE * count or high < HIGH_SHARE * count:
        return False
    spread = float(np.sqrt((unlikely * (1 - unlikely)).sum()))
    return low - float(unlikely.sum()) > EXCESS * max(spread, 1.0)
