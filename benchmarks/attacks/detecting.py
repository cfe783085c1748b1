"""From observations to rates: how often and with how little data a class is caught, and how
often honest work is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.attacks.intervals import exact_interval, tail_rate
from benchmarks.attacks.store import Record
from roles.toploc.joined import Calibration, Fit, History, fit, score
from roles.toploc.joined.history import history_limit
from roles.toploc.observation import Observation
from roles.toploc.verify import ProofThresholds

LIMIT = 0.001
"""Accepted false positives per submission."""
WANTED = 0.99
PUBLISHED = ProofThresholds(38, 10.0, 8.0)
"""The reference implementation's thresholds, for each chunk of 32 tokens."""
JOINED_GROUPS = (2, 4, 8)
MONTH, ONE_IN = 3000, 1000
"""Accepted false alarms of a history: one node in ONE_IN, within a month of MONTH submissions."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A counted rate with its 95% confidence interval."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """The counted rate."""
        return self.hits / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The Clopper-Pearson interval."""
        return exact_interval(self.hits, self.trials)

    @property
    def least(self) -> float:
        """Lower 95% bound of the true rate: (30, 30) -> 0.905."""
        return exact_interval(self.hits, self.trials, confidence=0.9)[0]


@dataclass(frozen=True, slots=True)
class Detection:
    """One class. `tokens`: how many are needed to catch it in 99 of 100 cases (None: more than were joined).
    `submissions`: how many until a history catches it, as the median over all starts (None: more than there were)."""

    name: str
    caught: Rate
    by_chunk: Rate
    by_published: Rate
    tokens: int | None
    submissions: int | None
    reason: str
    kl: float


@dataclass(frozen=True, slots=True)
class Honesty:
    """Honest work, each half judged by a fit to the other half."""

    submissions: Rate
    completions: Rate
    chunks: Rate
    by_published: Rate
    tail_submissions: float
    tail_completions: float
    history_highest: float


def fit_honest(environments: Mapping[str, Sequence[Record]]) -> Fit:
    """The fit to all honest observations. Raises ValueError for fewer than two."""
    return fit({name: [record.observation for record in records] for name, records in environments.items()})


def judge_honest(environments: Mapping[str, Sequence[Record]]) -> Honesty:
    """False positive rates: each half of the honest groups is judged by the fit to the other half."""
    whole, single, chunks, published, histories = [], [], [], [], [0.0]
    for half in (0, 1):
        fitted = fit_honest({name: [r for r in rs if r.group % 2 != half] for name, rs in environments.items()})
        for records in environments.values():
            judged = [record.observation for record in records if record.group % 2 == half]
            scores = [score(each, fitted.calibration) for each in judged]
            whole += [item.p for item in scores]
            histories += _totals([item.evidence for item in scores])
            for each in judged:
                single += [score(part, fitted.calibration).p for part in split_observation(each, 1)]
                chunks += [score(part, fitted.calibration).p for part in _single_chunks(each)]
                published.append(_is_flagged(each))
    return Honesty(
        _below(whole),
        _below(single),
        _below(chunks),
        Rate(sum(published), len(published)),
        tail_rate([-math.log(p) for p in whole], -math.log(LIMIT)),
        tail_rate([-math.log(p) for p in single], -math.log(LIMIT)),
        max(histories),
    )


def detect(name: str, records: Sequence[Record], calibration: Calibration) -> Detection:
    """How often a class is caught."""
    observations = [record.observation for record in records]
    scores = [score(each, calibration) for each in observations]
    chunks = [score(part, calibration).p for each in observations for part in _single_chunks(each)]
    reasons = Counter(item.component for item in scores if item.p < LIMIT)
    return Detection(
        name,
        _below([item.p for item in scores]),
        _below(chunks),
        Rate(sum(map(_is_flagged, observations)), len(observations)),
        _tokens_needed(observations, calibration),
        _submissions_needed([item.evidence for item in scores]),
        reasons.most_common(1)[0][0] if reasons else "",
        sum(record.kl for record in records) / len(records),
    )


def _below(ps: Sequence[float]) -> Rate:
    return Rate(sum(p < LIMIT for p in ps), len(ps))


def _is_flagged(observation: Observation) -> bool:
    return not all(PUBLISHED.admits(chunk) for parts in observation.chunks for chunk in parts)


def _single_chunks(observation: Observation) -> Iterator[Observation]:
    """Every chunk as an observation of its own."""
    size = observation.chunk
    for parts, own in zip(observation.chunks, observation.margins, strict=True):
        for number, part in enumerate(parts):
            yield Observation(((part,),), (own[number * size : (number + 1) * size],), size)


def _tokens_needed(observations: Sequence[Observation], calibration: Calibration) -> int | None:
    for parts in _growing(observations):
        caught = sum(score(part, calibration).p < LIMIT for part in parts)
        if caught >= WANTED * len(parts):
            return round(sum(part.tokens for part in parts) / len(parts))
    return None


def join_observations(parts: Iterable[Observation]) -> Observation:
    """Join several observations into one, as of one submission. Raises ValueError for none, or for different chunks."""
    all_ = list(parts)
    if len({each.chunk for each in all_}) != 1:
        raise ValueError("observations to be joined must be there, and of one size of chunk")
    return Observation(
        tuple(chunks for each in all_ for chunks in each.chunks),
        tuple(margins for each in all_ for margins in each.margins),
        all_[0].chunk,
    )


def split_observation(observation: Observation, completions: int) -> list[Observation]:
    """Split into parts of `completions` completions each; a remainder forms a part too."""
    return [
        Observation(
            observation.chunks[i : i + completions], observation.margins[i : i + completions], observation.chunk
        )
        for i in range(0, len(observation.margins), completions)
    ]


def _growing(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """The same observations in increasingly large parts: chunks, 1, 2, 4 .. completions, 1, 2, 4, 8 groups."""
    yield [part for each in observations for part in _single_chunks(each)]
    size = max(len(each.margins) for each in observations)
    count = 1
    while count < size:
        yield [part for each in observations for part in split_observation(each, count)]
        count *= 2
    yield list(observations)
    for count in JOINED_GROUPS:
        if count <= len(observations):
            starts = range(0, len(observations) - count + 1, count)
            yield [join_observations(observations[start : start + count]) for start in starts]


def _totals(evidence: Sequence[Sequence[float]]) -> list[float]:
    history, totals = History(), []
    for each in evidence:
        history = history.after(each, limit=_history_limit())
        totals.append(history.total)
    return totals


def _submissions_needed(evidence: Sequence[Sequence[float]]) -> int | None:
    """The median over all starts, going once round all submissions from each."""
    needed = []
    for start in range(len(evidence)):
        totals = _totals([*evidence[start:], *evidence[:start]])
        needed.append(next((n for n, total in enumerate(totals, 1) if total >= _history_limit()), len(evidence) + 1))
    middle = sorted(needed)[len(needed) // 2]
    return middle if middle <= len(evidence) else None


def _history_limit() -> float:
    return history_limit(submissions=MONTH, one_in=ONE_IN)
