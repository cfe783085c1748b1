"""The checks of an audit, which need the model's forward pass and not only the file.

Each returns, or raises Reject or SoftReject, like those in `roles.verification.checks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roles.rules import Reason, Reject, SoftReject
from roles.spec import Threshold
from roles.toploc.encoding import ENCODINGS
from roles.toploc.errors import MalformedProof
from roles.toploc.sampling_check import (
    LOW,
    MARGIN_CAP,
    SamplingStatistics,
    SamplingThresholds,
    is_two_humped,
    judge_sampling,
    summarise_margins,
)
from roles.toploc.verify import Judgement, ProofStatistics, ProofThresholds, judge, verify_proofs, worst
from roles.verification.case import Case
from roles.verification.duplicates import RUN

END_MARGIN = 1.0
"""Numerical noise moves a score by a few thousandths; an end token further off was inserted."""
OWN_SHARE = 0.1
"""Under a row's own seed, margins amount to less than this share of the tokens' surprise (in
nats), usually to thousandths."""


def check_proofs(case: Case) -> None:
    """TOPLOC: the proofs match the last hidden states that this policy has for these tokens, in the run's own dtype.

    Soft where the policy itself gives non-finite states, which is its trainer's fault.
    """
    checks, model = case.means.spec.checks, case.means.spec.model
    pairs = [(item.states, row.proof) for item, row in zip(case.prefill, case.file.rows, strict=True)]
    if not all(bool(states.isfinite().all()) for states, _ in pairs):
        raise SoftReject(Reason.PROOF_UNCERTAIN, "this policy's own states are not finite")
    try:
        case.chunks = verify_proofs(pairs, encoding=ENCODINGS[model.dtype], topk=checks.topk, chunk=checks.chunk)
    except MalformedProof as error:
        raise Reject(Reason.PROOF_MALFORMED, str(error)) from error
    chunks = [part for parts in case.chunks for part in parts]
    case.proof_statistics = worst(chunks)
    honest, fraud = _proof_thresholds(checks.honest), _proof_thresholds(checks.fraud)
    found = judge(chunks, honest=honest, fraud=fraud)
    if found is Judgement.FRAUD:
        raise Reject(Reason.PROOF_MISMATCH, _worst_chunk(case.chunks, fraud))
    if found is Judgement.DOUBTFUL:
        raise SoftReject(Reason.PROOF_UNCERTAIN, _worst_chunk(case.chunks, honest))


def _worst_chunk(rows: Sequence[Sequence[ProofStatistics]], limits: ProofThresholds) -> str:
    """Describe the first chunk over the limits, so that a person can check it again."""
    number, part, chunk = next(
        (row, part, chunk)
        for row, parts in enumerate(rows)
        for part, chunk in enumerate(parts)
        if not limits.admits(chunk)
    )
    return (
        f"row {number}, chunk {part}: {chunk.exponent_mismatches} exponents differ, mantissas by {chunk.mantissa_mean:.3g} "
        f"(median {chunk.mantissa_median:.3g}); limits {limits.exponent_mismatches}, {limits.mantissa_mean:g}, "
        f"{limits.mantissa_median:g}"
    )


def check_sampling(case: Case) -> None:
    """The tokens, above all the end token, are those that seeded sampling gives on this policy's logits."""
    checks = case.means.spec.checks
    statistics = [summarise_margins(part) for part in case.margins]
    honest, fraud = _sampling_thresholds(checks.honest), _sampling_thresholds(checks.fraud)
    found = judge_sampling(statistics, honest=honest, fraud=fraud)
    if found is Judgement.FRAUD:
        raise Reject(Reason.SAMPLING_MISMATCH, _worst_row(statistics, fraud))
    if found is Judgement.DOUBTFUL:
        raise SoftReject(Reason.SAMPLING_UNCERTAIN, _worst_row(statistics, honest))


def _worst_row(rows: Sequence[SamplingStatistics], limits: SamplingThresholds) -> str:
    number, found = next((number, row) for number, row in enumerate(rows) if not limits.admits(row))
    return (
        f"row {number}: margins of {found.mean_clipped:.4g} on average and {found.largest:.4g} at most, "
        f"{found.exact_share:.1%} of {found.tokens} tokens exact; limits {limits.mean_clipped:g}, {limits.largest:g}"
    )


def check_endings(case: Case) -> None:
    """Where sampling is checked against the seed, the end token is the one that the seed gives: in a long completion,
    an inserted one must not hide in the mean of the margins. Soft, like the paper's P(EOS) > 0.1."""
    if case.means.spec.checks.fraud.margin_mean >= 5000:  # sampling is not checked in this run
        return
    for number, (row, part) in enumerate(zip(case.file.rows, case.margins, strict=True)):
        if row.finish == "eos" and part[-1] > END_MARGIN:
            detail = f"row {number}: an end token that seeded sampling does not give, by {part[-1]:.3g}"
            raise SoftReject(Reason.BAD_TERMINATION, detail)


def check_humps(case: Case) -> None:
    """The chosen tokens' probabilities have one hump: two mean that another model decoded and this one prefilled."""
    if case.settings.temperature == 0.0:
        return
    logprobs = np.concatenate([item.logprobs for item in case.readings])
    unlikely = np.concatenate([item.unlikely for item in case.readings])
    if is_two_humped(logprobs, unlikely):
        low, expected = int((np.exp(logprobs) < LOW).sum()), float(unlikely.sum())
        raise SoftReject(Reason.TWO_HUMPED, f"{low} of {len(logprobs)} tokens below {LOW}, {expected:.0f} expected")


def check_duplicates(case: Case) -> None:
    """No completion contains a part, too improbable to occur twice, that was accepted from another node
    before or is in another row.

    Tokens that seeded sampling gives belong to their maker, whoever copied them first, so the owner of the prompt keeps
    its credit. Soft, because validators may differ about which of two came first.
    """
    if case.settings.temperature == 0.0:  # greedy completions of one prompt are all alike
        return
    seen: dict[str, str] = {}
    for number, sketch in enumerate(case.sketches):
        owners = {run: _owner(case, run) or seen.get(run) for run in sketch.runs}
        taken = [start for run, start in sketch.runs.items() if owners[run]]
        if taken and (copied := _count_copied(case, number, taken)):
            owner = next(name for name in owners.values() if name)
            raise SoftReject(
                Reason.DUPLICATE, f"row {number}: {copied} of {len(case.own[number])} tokens stand in {owner}"
            )
        seen |= {run: f"row {number}" for run in sketch.runs if run not in seen}


def _owner(case: Case, run: str) -> str | None:
    owner = case.means.duplicates.owner(run)
    return None if owner in (None, case.place) else "index {2} of step {1} of {0}".format(*owner)


def _count_copied(case: Case, number: int, starts: Sequence[int]) -> int:
    """Number of the row's tokens in these runs, provided they are together too improbable to occur twice and are not
    what the row's own seed gives. Under another seed a token's margin is about its surprise."""
    reading = case.readings[number]
    inside = np.zeros(len(reading.logprobs), dtype=np.bool_)
    for start in starts:
        inside[start : start + RUN] = True
    if len(starts) == len(case.sketches[number].runs):  # every run is known: judge the completion as a whole
        inside[:] = True
    surprise = -float(reading.logprobs[inside].sum())
    missed = float(np.minimum(reading.margins[inside], MARGIN_CAP).sum())
    improbable = surprise > case.means.spec.checks.duplicate_bits * math.log(2)
    return int(inside.sum()) if improbable and missed > OWN_SHARE * surprise else 0


def check_joined(case: Case) -> None:
    """All measurements joined, which shows what no single chunk or completion does, such as 8-bit weights."""
    found, joined = case.score, case.means.spec.checks.joined
    if found is None or joined is None:
        return
    if found.p * joined.fault_one_in < 1 <= joined.fault_one_in:
        raise Reject(Reason.JOINED_MISMATCH, str(found))
    if found.p * joined.refuse_one_in < 1:
        raise SoftReject(Reason.JOINED_UNCERTAIN, str(found))


def _proof_thresholds(values: Threshold) -> ProofThresholds:
    return ProofThresholds(values.exponent_mismatches, values.mantissa_mean / 1000, values.mantissa_median / 1000)


def _sampling_thresholds(values: Threshold) -> SamplingThresholds:
    return SamplingThresholds(values.margin_mean / 1000, values.margin_largest / 1000)
