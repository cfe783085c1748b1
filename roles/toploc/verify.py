"""The verifier's half of TOPLOC: one prefill's states against a proof, and the judgement of the statistics.

Counts mismatches, never agreements (TOP-19). Knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

import numpy as np
import torch

from roles.toploc.polynomial import PRIME, Field, evaluate
from roles.toploc.proof import CHUNK, TOPK, ChunkRecord, TopValues, find_top_values, parse_proof, split_chunks

NOTHING_AGREES = float(2**64)  # the reference's mantissa error when no exponent agrees


@dataclass(frozen=True, slots=True)
class ProofStatistics:
    """One chunk: how many of the verifier's `points` values have another exponent in the proof, and the mean and median
    of the absolute mantissa difference (0 to 127) where exponents agree. Signs are ignored, as in the reference."""

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
        """Whether none of the three is exceeded."""
        return (
            statistics.exponent_mismatches <= self.exponent_mismatches
            and statistics.mantissa_mean <= self.mantissa_mean
            and statistics.mantissa_median <= self.mantissa_median
        )


class Judgement(Enum):
    """What statistics say of the prover."""

    HONEST = "honest"
    DOUBTFUL = "doubtful"  # between the thresholds: refused, no strike
    FRAUD = "fraud"


def verify_proof(states: torch.Tensor, proof: bytes, *, topk: int = TOPK, chunk: int = CHUNK) -> list[ProofStatistics]:
    """Statistics of each chunk, given the verifier's own states `[tokens, hidden]` bfloat16.

    Raises `MalformedProof`, and nothing else, whatever the proof's bytes.
    """
    return verify_proofs([(states, proof)], topk=topk, chunk=chunk)[0]


def verify_proofs(
    pairs: Sequence[tuple[torch.Tensor, bytes]], *, topk: int = TOPK, chunk: int = CHUNK
) -> list[list[ProofStatistics]]:
    """`verify_proof` for many completions at once. Raises `MalformedProof` when any proof is malformed."""
    parsed = [parse_proof(proof, tokens=len(states), topk=topk, chunk=chunk) for states, proof in pairs]
    tops = [find_top_values(part, topk) for states, _ in pairs for part in split_chunks(states, chunk)]
    statistics = iter(_compare(tops, [record for records in parsed for record in records]))
    return [[next(statistics) for _ in records] for records in parsed]


def judge(statistics: Iterable[ProofStatistics], *, honest: ProofThresholds, fraud: ProofThresholds) -> Judgement:
    """Fraud when any chunk exceeds the fraud thresholds; honest when all chunks are within the honest ones."""
    chunks = list(statistics)
    if not all(fraud.admits(chunk) for chunk in chunks):
        return Judgement.FRAUD
    return Judgement.HONEST if all(honest.admits(chunk) for chunk in chunks) else Judgement.DOUBTFUL


def worst(statistics: Iterable[ProofStatistics]) -> ProofStatistics:
    """The largest of each figure over chunks; zeros for none."""
    chunks = list(statistics)
    return ProofStatistics(
        exponent_mismatches=max((chunk.exponent_mismatches for chunk in chunks), default=0),
        mantissa_mean=max((chunk.mantissa_mean for chunk in chunks), default=0.0),
        mantissa_median=max((chunk.mantissa_median for chunk in chunks), default=0.0),
    )


def _compare(tops: Sequence[TopValues], records: Sequence[ChunkRecord]) -> list[ProofStatistics]:
    """Each chunk's own values against what its record says of the same positions."""
    results: dict[int, ProofStatistics] = {}
    order = sorted(range(len(tops)), key=lambda i: len(tops[i].indices))
    for _, group in groupby(order, key=lambda i: len(tops[i].indices)):
        members = list(group)
        moduli = np.array([records[i].modulus for i in members], dtype=np.int64)
        coefficients = np.array([records[i].coefficients for i in members], dtype=np.int64).T
        # The prover reduced its indices by its own modulus; without this, honest chunks with m != 65497 fail.  # TOP-08
        positions = np.stack([tops[i].indices for i in members], axis=1) % moduli
        claimed = evaluate(coefficients, positions)
        for column, member in enumerate(members):
            results[member] = _statistics(claimed[:, column], tops[member].bits)
    return [results[i] for i in range(len(tops))]


def _statistics(claimed: Field, own: Field) -> ProofStatistics:
    """bfloat16 patterns: sign 1 bit, exponent 8, mantissa 7. The field holds patterns below 65497 only."""
    own = own % PRIME
    agree = (claimed >> 7 & 0xFF) == (own >> 7 & 0xFF)
    mismatches = int(len(own) - agree.sum())
    if mismatches == len(own):
        return ProofStatistics(mismatches, NOTHING_AGREES, NOTHING_AGREES)
    errors = np.abs((claimed & 0x7F) - (own & 0x7F))[agree]
    return ProofStatistics(mismatches, float(errors.mean()), float(np.median(errors)))
