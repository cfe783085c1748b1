"""Fits the honest noise to observations of honest submissions, made in as many environments as honest nodes have.

An honest node runs one of the environments (engine, kernel, batch), and it is not known which. Levels are
therefore those of the environment that deviates most. Spreads are relative to the level and common to all,
by the method of moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roles.toploc.joined.calibration import (
    FILLS,
    GRAINS,
    NAMES,
    Calibration,
    Component,
    Fit,
    Floats,
    Units,
    sums_of,
    units_of,
)
from roles.toploc.joined.score import score, tail
from roles.toploc.observation import Observation

AT = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
TAIL = 0.1  # above it, more variance lowers a Gamma's p instead of raising it, because its median falls
LEAST_UNITS = 30  # per class; with fewer its level is unknown
UNSEEN = 3  # events that may have gone unseen (95%: none in N trials means at most 3 in N), one grain each
NEAR = 0.5  # spreads come from environments that deviate at least this share of the worst
DOUBT = 2.0  # standard errors by which levels and variances are raised
INFLATIONS = tuple(1.15**k for k in range(40))


def fit(environments: Mapping[str, Sequence[Observation]]) -> Fit:
    """The calibration of honest observations by environment. Raises ValueError for fewer than two submissions."""
    names = list(environments)
    observed = [(e, each) for e, name in enumerate(names) for each in environments[name]]
    if len(observed) < 2:
        raise ValueError("a fit needs at least two honest submissions")
    owners = np.array([e for e, _ in observed])
    units = [units_of(each) for _, each in observed]
    sizes = [len(each.margins) for _, each in observed]
    fitted = [_fit_component([each[k] for each in units], sizes, owners, k) for k in range(len(NAMES))]
    calibration = Calibration(*(component for component, _, _ in fitted))
    ps = np.array([score(each, calibration).p for _, each in observed])
    worst, inflation = [names[e] for _, e, _ in fitted], [factor for _, _, factor in fitted]
    return Fit(
        calibration,
        len(observed),
        AT,
        tuple(float((ps < at).mean()) for at in AT),
        (worst[0], worst[1], worst[2]),
        (inflation[0], inflation[1], inflation[2]),
    )


def _fit_component(
    units: Sequence[Units], sizes: Sequence[int], owners: np.ndarray[tuple[int], np.dtype[np.int64]], k: int
) -> tuple[Component, int, float]:
    """The component, the environment that its level comes from, and the factor by which its variances were raised."""
    levels = _pooled_levels(units, classes=len(FILLS) if k < 2 else 1, grain=GRAINS[k])
    sums = [sums_of(each, levels, size) for each, size in zip(units, sizes, strict=True)]
    totals = np.array([float(s.sum()) for s, _ in sums])
    counts = np.array([float(c.sum()) for _, c in sums])
    least = UNSEEN * GRAINS[k] / max(levels) if any(levels) else 0.0
    ratios = np.array([_ratio(totals[owners == e], counts[owners == e], least) for e in range(owners.max() + 1)])
    seen = np.array([totals[owners == e].sum() > 0 for e in range(len(ratios))])
    ratios_near = np.where(seen & (ratios >= NEAR * ratios.max()), ratios, 0.0)[owners]
    unit, completion, submission = _spreads(units, levels, sums, ratios_near, grain=GRAINS[k])
    doubt = 1 + DOUBT * math.sqrt(2 / len(units))
    shape = Component(levels, unit * doubt, completion * doubt, submission * doubt)
    highest = [
        _highest(shape, ratios[e], [c for (_, c), o in zip(sums, owners, strict=True) if o == e])
        for e in range(len(ratios))
    ]
    worst = int(np.argmax(highest))
    component = replace(shape, levels=tuple(level * highest[worst] for level in levels))
    factor = _inflation(component, sums, ratios_near)
    return _inflated(component, factor), worst, factor


def _pooled_levels(units: Sequence[Units], *, classes: int, grain: float) -> tuple[float, ...]:
    values = np.concatenate([each.values for each in units])
    kinds = np.concatenate([each.classes for each in units])
    found = []
    for kind in range(classes):
        own = values[kinds == kind]
        found.append(float((own.sum() + UNSEEN * grain) / len(own)) if len(own) >= LEAST_UNITS else 0.0)
    return tuple(found)


def _ratio(totals: Floats, counts: Floats, least: float) -> float:
    """How much an environment deviates relative to all, but at least by what it may have shown unseen."""
    return max(float(totals.sum()), least) / float(counts.sum()) if counts.sum() else 0.0


def _spreads(
    units: Sequence[Units],
    levels: Sequence[float],
    sums: Sequence[tuple[Floats, Floats]],
    ratios: Floats,
    *,
    grain: float,
) -> tuple[float, float, float]:
    """Relative variances within completions, of completions within submissions, and of submissions, by moments:
    E sum_c (S_c - n_c)^2 = u n + (v_c + v_s) Q, E (S - n)^2 = u n + v_c Q + v_s n^2, with Q = sum_c n_c^2."""
    within = degrees = many = squares = apart = together = own = 0.0
    for each, (total, count), ratio in zip(units, sums, ratios, strict=True):
        if ratio <= 0 or not count.sum():
            continue
        relative, owners = each.relative(levels)
        mean = (total / np.maximum(count, 1))[owners]
        within += float((((relative - mean) / ratio) ** 2).sum())
        degrees += float(np.maximum(count - 1, 0).sum())
        miss = total / ratio - count
        apart += float((miss**2).sum())
        together += float(miss.sum() ** 2)
        many += float(count.sum())
        squares += float((count**2).sum())
        own += float(count.sum() ** 2)
    rarity = grain / max(levels) if any(levels) else 1.0
    if not many:
        return rarity, 0.0, 0.0  # events of one grain, as in a Poisson process
    unit = (within + UNSEEN * rarity**2) / max(degrees, 1.0)  # unseen events add variance too
    above, beyond = apart - unit * many, together - unit * many
    submission = max(0.0, (beyond - above) / (own - squares)) if own > squares else 0.0
    completion = max(0.0, (above if submission else max(above, beyond)) / squares - submission)
    return float(unit), float(completion), float(submission)


def _highest(shape: Component, ratio: float, counts: Sequence[Floats]) -> float:
    """The environment's ratio, raised by two of its own standard errors."""
    joined = [count for count in counts if count.sum()]
    if not joined:
        return ratio
    n = sum(float(count.sum()) for count in joined)
    variance = sum(shape.gamma(count)[1] * float(count.sum()) for count in joined) / n**2
    return float(ratio * (1 + DOUBT * math.sqrt(variance)))


def _inflation(component: Component, sums: Sequence[tuple[Floats, Floats]], ratios: Floats) -> float:
    """The factor by which variances must be raised so that honest tails, each about its own environment's mean, are
    nowhere heavier than the Gamma's (beyond chance at 95%)."""
    judged = [
        (total.sum() / ratio, count)
        for (total, count), ratio in zip(sums, ratios, strict=True)
        if ratio > 0 and count.sum()
    ]
    counts = dict[float, int]()
    for factor in INFLATIONS:
        wider = _inflated(component, factor)
        ps = np.array([tail(wider, float(total), count) for total, count in judged])
        counts[factor] = sum(max(0, int((ps < at).sum()) - _most(len(ps), at)) for at in AT if at <= TAIL)
        if not counts[factor]:
            break
    return min(counts, key=lambda factor: counts[factor])


def _most(n: int, p: float) -> int:
    """The 97.5% quantile of a binomial: more than this many of n at rate p are not chance."""
    weight = n * math.log1p(-p)  # as a logarithm, since the weight itself underflows for thousands of submissions
    cumulated, count = math.exp(weight), 0
    while cumulated < 0.975 and count < n:
        weight += math.log((n - count) / (count + 1) * p / (1 - p))
        cumulated += math.exp(weight)
        count += 1
    return count


def _inflated(component: Component, factor: float) -> Component:
    return replace(
        component,
        unit=component.unit * factor,
        completion=component.completion * factor,
        submission=component.submission * factor,
    )
