"""The verifier's half of TOPLOC: compares one prefill's states with a proof, and judges the statistics.

Counts mismatches, never matches (TOP-19). Knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import torch

from roles.toploc.encoding import Encoding, encoding_of
from roles.toploc.errors import MalformedProof
from roles.toploc.polynomial import PRIME, Field, evaluate
from roles.toploc.proof import CHUNK, TOPK, Records, TopValues, find_top_values, parse_proof

NOTHING_AGREES = float(2**64)  # the reference's mantissa error when no exponent agrees


@dataclass(frozen=True, slots=True)
class ProofStatistics:
    """One chunk: how many of the verifier's values have another exponent in the proof, and the mean and median of the
    absolute mantissa difference where exponents agree, in units of the encoding's last mantissa bit (bfloat16: 0 to
    127, float16: to 1023, float32: to 4095). Signs are ignored, as in the reference."""

    exponent_mismatches: int
    mantissa_mean: float
    mantissa_median: float


@dataclass(frozen=True, slots=True)
class ProofThresholds:
    """The largest statistics that still pass."""

    exponent_mismatches: int
    mantissa_mean: float
    mantissa_median: float

    def admits(self, statistics: ProofStatistics) -> bool:
        """Whether none of the three limits is exceeded."""
        return (
            statistics.exponent_mismatches <= self.exponent_mismatches
            and statistics.mantissa_mean <= self.mantissa_mean
            and statistics.mantissa_median <= self.mantissa_median
        )


class Judgement(Enum):
    """What the statistics say about the prover."""

    HONEST = "honest"
    DOUBTFUL = "doubtful"  # between the thresholds: refused without a strike
    FRAUD = "fraud"


def verify_proofs(
    pairs: Sequence[tuple[torch.Tensor, bytes]],
    *,
    encoding: Encoding | None = None,
    topk: int = TOPK,
    chunk: int = CHUNK,
) -> list[list[ProofStatistics]]:
    """Statistics of each chunk of many completions, given the verifier's own states `[tokens, hidden]` and each proof.

    Raises `MalformedProof` when any proof is malformed, and nothing else, whatever the bytes. Without `encoding` the
    states' dtype decides. With it (the run's), states of another dtype raise ValueError.
    """
    encoding = encoding or encoding_of([states for states, _ in pairs])
    parsed = [_parse(number, proof, len(states), topk, chunk) for number, (states, proof) in enumerate(pairs)]
    statistics: dict[int, ProofStatistics] = {}
    if parsed:
        records = Records(
            moduli=np.concatenate([part.moduli for part in parsed]),
            coefficients=np.concatenate([part.coefficients for part in parsed]),
        )
        for tops in find_top_values([states for states, _ in pairs], encoding=encoding, topk=topk, chunk=chunk):
            statistics |= zip(tops.chunks, _compare(tops, records, encoding), strict=True)
    numbers = iter(range(len(statistics)))
    return [[statistics[next(numbers)] for _ in part.moduli] for part in parsed]


def _parse(number: int, proof: bytes, tokens: int, topk: int, chunk: int) -> Records:
    try:
        return parse_proof(proof, tokens=tokens, topk=topk, chunk=chunk)
    except MalformedProof as error:
        raise MalformedProof(f"row {number}: {error}") from error


def judge(statistics: Iterable[ProofStatistics], *, honest: ProofThresholds, fraud: ProofThresholds) -> Judgement:
    """Fraud when any chunk exceeds the fraud thresholds; honest when all chunks are within the honest ones."""
    chunks = list(statistics)
    if not all(fraud.admits(chunk) for chunk in chunks):
        return Judgement.FRAUD
    return Judgement.HONEST if all(honest.admits(chunk) for chunk in chunks) else Judgement.DOUBTFUL


def worst(statistics: Iterable[ProofStatistics]) -> ProofStatistics:
    """The largest of each statistic over the chunks; zeros for none."""
    chunks = list(statistics)
    return ProofStatistics(
        exponent_mismatches=max((chunk.exponent_mismatches for chunk in chunks), default=0),
        mantissa_mean=max((chunk.mantissa_mean for chunk in chunks), default=0.0),
        mantissa_median=max((chunk.mantissa_median for chunk in chunks), default=0.0),
    )


def _compare(tops: TopValues, records: Records, encoding: Encoding) -> list[ProofStatistics]:
    """Compare each chunk's own values with what its record claims at the same positions."""
    moduli, coefficients = records.moduli[list(tops.chunks)], records.coefficients[list(tops.chunks)].T
    if coefficients[len(tops.indices) :].any():
        raise MalformedProof("more coefficients than values")
    # The prover reduced its indices by its own modulus; without this, honest chunks with m != 65497 fail.  # TOP-08
    claimed = evaluate(coefficients, tops.indices % moduli)
    own = tops.words % PRIME  # the field only represents words below 65497
    agree = encoding.exponents(claimed) == encoding.exponents(own)
    errors = np.abs(encoding.mantissas(claimed) - encoding.mantissas(own))
    return _statistics(agree, errors)


def _statistics(agree: npt.NDArray[np.bool_], errors: Field) -> list[ProofStatistics]:
    """Statistics of each chunk, from `[points, chunks]`: agreement of exponents, and mantissa differences."""
    points, agreeing = len(agree), agree.sum(axis=0)
    counted = np.maximum(agreeing, 1)
    means = np.where(agree, errors, 0).sum(axis=0) / counted
    ranked = np.sort(np.where(agree, errors, np.iinfo(np.int64).max), axis=0)
    middle = np.stack([(counted - 1) // 2, counted // 2])
    medians = np.take_along_axis(ranked, middle, axis=0).astype(np.float64).mean(axis=0)
    return [
        ProofStatistics(points - count, mean, median)
        if count
        else ProofStatistics(points, NOTHING_AGREES, NOTHING_AGREES)
        for count, mean, median in zip(agreeing.tolist(), means.tolist(), medians.tolist(), strict=True)
    ]
