"""From observations to rates: how often a class is caught, by how little of it, and how often honest work would be."""

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
"""False positives for each submission."""
WANTED = 0.99
PUBLISHED = ProofThresholds(38, 10.0, 8.0)
"""The reference's, for each chunk of 32 tokens."""
JOINED_GROUPS = (2, 4, 8)
MONTH, ONE_IN = 3000, 1000
"""A history's false alarms: one node in so many, in a month of so many submissions."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A counted rate with the interval that holds the true one at 95%."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """The counted rate."""
        return self.hits / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's."""
        return exact_interval(self.hits, self.trials)

    @property
    def least(self) -> float:
        """The true rate is above it at 95%: (30, 30) -> 0.905."""
        return exact_interval(self.hits, self.trials, confidence=0.9)[0]


@dataclass(frozen=True, slots=True)
class Detection:
    """One class. `tokens`: how many it takes to be caught in 99 of 100 (None: more than were joined). `submissions`: after
    how many a history catches it, at the median of all starts (None: not within all there were)."""

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
    """Honest work judged by a fit to the other half of it."""

    submissions: Rate
    completions: Rate
    chunks: Rate
    by_published: Rate
    tail_submissions: float
    tail_completions: float
    history_highest: float


def fit_honest(environments: Mapping[str, Sequence[Record]]) -> Fit:
    """The fit to every honest observation there is. Raises ValueError for fewer than two."""
    return fit({name: [record.observation for record in records] for name, records in environments.items()})


def judge_honest(environments: Mapping[str, Sequence[Record]]) -> Honesty:
    """False positives: each half of the honest groups judged by the other's fit."""
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
    """Several as one, as if they were one submission. Raises ValueError for none, or for different chunks."""
    all_ = list(parts)
    if len({each.chunk for each in all_}) != 1:
        raise ValueError("observations to be joined must be there, and of one size of chunk")
    return Observation(
        tuple(chunks for each in all_ for chunks in each.chunks),
        tuple(margins for each in all_ for margins in each.margins),
        all_[0].chunk,
    )


def split_observation(observation: Observation, completions: int) -> list[Observation]:
    """Parts of so many completions each; what is left over at the end is a part too."""
    return [
        Observation(
            observation.chunks[i : i + completions], observation.margins[i : i + completions], observation.chunk
        )
        for i in range(0, len(observation.margins), completions)
    ]


def _growing(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """The same observations in larger and larger parts: chunks, 1, 2, 4 .. completions, 1, 2, 4, 8 groups."""
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
    """From each start, once round all of them; the median."""
    needed = []
    for start in range(len(evidence)):
        totals = _totals([*evidence[start:], *evidence[:start]])
        needed.append(next((n for n, total in enumerate(totals, 1) if total >= _history_limit()), len(evidence) + 1))
    middle = sorted(needed)[len(needed) // 2]
    return middle if middle <= len(evidence) else None


def _history_limit() -> float:
    return history_limit(submissions=MONTH, one_in=ONE_IN)
