"""The measurements, the thresholds derived from them, and the fit of the noise model,
as a table and as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from node.calibration.drafts import thousandths
from roles.toploc.joined import NAMES, Fit, fit, history_limit, score
from roles.toploc.joined.calibration import MANTISSA_CAP
from roles.toploc.joined.pinned import pin
from roles.toploc.joined.thresholds import BOUNDS, LEAST, find_bounds, largest_values
from roles.toploc.observation import Observation

FRAUD_ONE_IN = 10**9
"""Rarity that no honest chunk or completion reaches by chance. Beyond it a refusal is a fault."""
FRAUD_TIMES = 2.0
FRAUD_LEAST = (20.0, 4.5, 4.5, 0.1, 2.0)
"""Lower bounds of the fraud thresholds, which are also at least FRAUD_TIMES the honest ones. They are not below what
honest GPUs of different kinds have shown against each other (17 mismatches, mantissa mean 4.2, median 4: TOPLOC, arXiv
2501.16007), since a machine that was not measured is not fraud."""
LARGEST_MARGIN = 4999  # 5000 means that sampling is not checked


@dataclass(frozen=True, slots=True)
class Rates:
    """Accepted false positive rates: one submission in `submission`, and one node in `node` per `month` submissions."""

    submission: int
    node: int
    month: int


@dataclass(frozen=True, slots=True)
class Format:
    """Format of proofs: values committed to per chunk, and mantissa bits in the run's encoding."""

    topk: int
    mantissa_bits: int

    def scaled(self, bounds: Sequence[float]) -> list[float]:
        """Convert bounds meant for mantissas of 7 bits to this format."""
        factor = 2.0 ** (self.mantissa_bits - 7)
        return [
            bound * (factor if name.startswith("mantissa") else 1) for name, bound in zip(BOUNDS, bounds, strict=True)
        ]


def checks_of(
    environments: Mapping[str, Sequence[Observation]], fitted: Fit, rates: Rates, form: Format
) -> dict[str, Any]:
    """Threshold tables for the spec. Half of a submission's false positive rate goes to the joined
    test, half to single values."""
    honest = find_bounds(environments, one_in=2 * rates.submission, least=form.scaled(LEAST))
    far = find_bounds(environments, one_in=FRAUD_ONE_IN)
    least = form.scaled(FRAUD_LEAST)
    fraud = [max(*each[:2], FRAUD_TIMES * each[2]) for each in zip(least, far, honest, strict=True)]
    return {
        "honest": _threshold(honest, form.topk),
        "fraud": _threshold(fraud, form.topk),
        "joined": {
            "refuse_one_in": 2 * rates.submission,
            "alarm_one_in": rates.node,
            "month": rates.month,
            **pin(fitted.calibration),
        },
    }


def report_of(
    environments: Mapping[str, Sequence[Observation]],
    shown: Mapping[str, Sequence[Observation]],
    rates: Rates,
    form: Format,
) -> dict[str, Any]:
    """The complete report as plain values. `shown` environments are described but not fitted. Raises
    ValueError for too few observations."""
    fitted = fit(environments)
    tables = checks_of(environments, fitted, rates, form)
    everything = {**environments, **shown}
    return {
        "environments": {
            name: _describe(some, fitted) | {"fitted": name in environments}
            for name, some in everything.items()
            if some
        },
        "fit": {
            "submissions": fitted.submissions,
            "at": fitted.at,
            "shares": fitted.shares,
            "worst": dict(zip(NAMES, fitted.worst, strict=True)),
            "inflation": dict(zip(NAMES, fitted.inflation, strict=True)),
        },
        "history_nats": history_limit(submissions=rates.month, one_in=rates.node),
        "checks": tables,
    }


def say(report: Mapping[str, Any]) -> str:
    """The report as text."""
    lines = [
        "environment     submissions  tokens    exact  margin     mismatches     mantissa mean  times level   smallest p",
        "                                      tokens  mean       mean, largest  mean, largest  e / m / t",
    ]
    for name, row in report["environments"].items():
        level = " / ".join(f"{each:.2f}" for each in row["ratios"])
        lines.append(
            f"{name + ('' if row['fitted'] else ' *'):15} {row['submissions']:11} {row['tokens']:7} {row['exact']:8.2%}"
            f"  {row['margin_mean']:<9.2g}  {row['mismatches_mean']:<5.3g} {row['mismatches_largest']:<7.3g}"
            f"  {row['mantissa_mean']:<6.3g} {row['mantissa_largest']:<6.3g}  {level:18}  {row['smallest_p']:.2g}"
        )
    if not all(row["fitted"] for row in report["environments"].values()):
        lines.append("* shown only: a run pins its dtype")
    found = report["fit"]
    shares = ", ".join(f"{share:.3g} below {at:g}" for at, share in zip(found["at"], found["shares"], strict=True))
    lines += [
        "",
        f"fit (Gamma, docs/checks.md): honest p of {found['submissions']} submissions: {shares}",
        "levels are of: " + ", ".join(f"{name} {worst}" for name, worst in found["worst"].items()),
        "variances put up, so that tails fit: " + ", ".join(f"{n} x{f:.2f}" for n, f in found["inflation"].items()),
        f"a node is refused once its submissions add up to {report['history_nats']:.1f} nats",
    ]
    for kind in ("honest", "fraud"):
        lines.append(f"{kind}: " + ", ".join(f"{name} {value}" for name, value in report["checks"][kind].items()))
    return "\n".join(lines)


def _describe(some: Sequence[Observation], fitted: Fit) -> dict[str, Any]:
    scores = [score(each, fitted.calibration) for each in some]
    chunks = [chunk for each in some for parts in each.chunks for chunk in parts]
    margins = np.concatenate([part for each in some for part in each.margins])
    largest = np.array([largest_values(each) for each in some])
    return {
        "submissions": len(some),
        "tokens": len(margins),
        "exact": float((margins <= 0).mean()),
        "margin_mean": float(np.minimum(margins, 5.0).mean()),
        "mismatches_mean": float(np.mean([chunk.exponent_mismatches for chunk in chunks])),
        "mismatches_largest": float(largest[:, 0].max()),
        "mantissa_mean": float(np.mean([min(chunk.mantissa_mean, MANTISSA_CAP) for chunk in chunks])),
        "mantissa_largest": float(largest[:, 1].max()),
        "ratios": [float(np.mean([each.ratios[k] for each in scores])) for k in range(len(NAMES))],
        "smallest_p": min(each.p for each in scores),
        "largest": dict(zip(BOUNDS, largest.max(axis=0).tolist(), strict=True)),
    }


def _threshold(bounds: Sequence[float], topk: int) -> dict[str, int]:
    values = dict(zip(BOUNDS, bounds, strict=True))
    return {
        "exponent_mismatches": min(math.floor(values["exponent_mismatches"]), topk),
        **{name: thousandths(values[name]) for name in BOUNDS[1:3]},
        "margin_mean": min(thousandths(values["margin_mean"]), LARGEST_MARGIN),
        "margin_largest": min(thousandths(values["margin_largest"]), 10**9),  # of a single token, which nothing clips
    }
