"""The checks, in order, cheapest first; `CHECKS` is the list. Each returns, or raises Reject or SoftReject.

Stage 1 (the row itself) is the gate's: `roles.trusted` and `roles.rules`. Each check sees a case that passed all the
checks before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roles.rollouts.schema import RolloutRow
from roles.rules import Reason, Reject, SoftReject
from roles.spec import Threshold
from roles.tasks.task import Undecided
from roles.toploc.encoding import ENCODINGS
from roles.toploc.errors import MalformedProof
from roles.toploc.sampling_check import (
    LOW,
    MARGIN_CAP,
    SamplingStatistics,
    SamplingThresholds,
    find_termination_fault,
    is_two_humped,
    judge_sampling,
    summarise_margins,
)
from roles.toploc.verify import Judgement, ProofStatistics, ProofThresholds, judge, verify_proofs, worst
from roles.turns.speaking import find_turn_fault
from roles.verification.case import Case
from roles.verification.duplicates import RUN

SCORING_SECONDS = 10.0
"""Time for all rewards of one submission; more is nobody's provable fault."""
END_MARGIN = 1.0
"""Numerical noise moves a score by a few thousandths; an end token further off was put there."""
LOGPROB_SLACK = 1e-3
OWN_SHARE = 0.1
"""Margins of a row's own tokens come to less than this share of their surprise (in nats): to some thousandths."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `audit` marks those that need the model's forward pass."""

    name: str
    judge: Callable[[Case], None]
    audit: bool = False


def check_size(case: Case) -> None:
    """The blob is as long as signed (its digest was checked as it arrived)."""
    if len(case.data) != case.submission.size:
        raise Reject(Reason.WRONG_SIZE, f"{len(case.data)} bytes, {case.submission.size} signed")


def check_schema(case: Case) -> None:
    """The blob is a rollout file: columns, lengths, finite numbers, tokens of the vocabulary."""
    _ = case.file


def check_bounds(case: Case) -> None:
    """As many rows as signed, the run's temperature, log-probabilities not positive."""
    rows = case.file.rows
    if len(rows) != case.submission.completions:
        raise Reject(Reason.BOUNDS, f"{len(rows)} completions")
    temperature = float(np.float32(case.settings.temperature))
    for number, row in enumerate(rows):
        if row.temperature != temperature:
            raise Reject(Reason.BOUNDS, f"temperature of row {number}")
        if row.output_logprobs and max(row.output_logprobs) > LOGPROB_SLACK:
            raise Reject(Reason.BOUNDS, f"log-probability of row {number}")


def check_units(case: Case) -> None:
    """The signed count of tokens is the file's: those that the policy said."""
    if (count := sum(map(len, case.own))) != case.submission.tokens:
        raise Reject(Reason.WRONG_UNITS, f"{count} tokens in the file, {case.submission.tokens} signed")


def check_identity(case: Case) -> None:
    """The file names the run, node, step, policy and index it was signed for."""
    file, signed = case.file, case.submission
    for name in ("run", "node", "step", "policy", "policy_step", "index"):
        said, wanted = getattr(file, name), getattr(signed, name)
        if said != wanted:
            raise Reject(Reason.WRONG_IDENTITY, f"{name} {str(said)[:80]} in the file, {wanted} signed")


def check_problems(case: Case) -> None:
    """Every row answers the assigned problem, under the assigned length target."""
    for number, (row, expected) in enumerate(zip(case.file.rows, case.expected, strict=False)):
        if (row.group, row.problem_id, row.target_length) != (expected.group, expected.problem, expected.target):
            detail = f"row {number}: problem {row.problem_id}, target {row.target_length}, for {expected}"
            raise Reject(Reason.WRONG_PROBLEM, detail)


def check_prompts(case: Case) -> None:
    """Every prompt is the assigned problem's text, in tokens; nothing is computed on a prompt of the file's choosing."""
    prompts: dict[tuple[int, int | None], tuple[int, ...]] = {}
    for number, row in enumerate(case.file.rows):
        asked = (row.problem_id, row.target_length)
        if asked not in prompts:
            prompts[asked] = case.means.engine.encode(case.means.length_task.prompt(*asked))
        if row.prompt != prompts[asked]:
            raise Reject(Reason.WRONG_PROMPT, f"row {number}")


def check_seeds(case: Case) -> None:
    """Every row was sampled with its assigned seed."""
    for number, (row, expected) in enumerate(zip(case.file.rows, case.expected, strict=False)):
        if row.seed != expected.seed:
            raise Reject(Reason.WRONG_SEED, f"row {number}: {row.seed} for {expected.seed}")


def check_turns(case: Case) -> None:
    """Every turn of the policy ends where its first call does, or with the completion; what stands between turns is what the
    tool answers. So neither can be passed off as the other."""
    use = case.means.use
    if use is None:
        return
    for number, row in enumerate(case.file.rows):
        fault = find_turn_fault(
            row.output, row.turns, engine=case.means.engine, use=use, limit=case.settings.max_tokens
        )
        if fault:
            raise Reject(Reason.WRONG_TURNS, f"row {number}: {fault}")


def check_rewards(case: Case) -> None:
    """Every reward is what the scorer gives. Soft when scoring takes too long, when nothing is claimed, or when the task says
    that machines differ."""
    task, monotonic = case.means.task, case.means.monotonic
    deadline = monotonic() + SCORING_SECONDS
    for number, row in enumerate(case.file.rows):
        reward = _score(case, row, len(case.own[number]))
        if monotonic() > deadline:
            raise SoftReject(Reason.SCORING_TIMEOUT, f"over {SCORING_SECONDS:.0f} s at row {number} of {len(case.own)}")
        if reward is not None and row.reward != reward:
            # nothing claimed may be a scorer that ran out of time there
            refusal = Reject if task.is_repeatable and row.reward != 0.0 else SoftReject
            raise refusal(Reason.WRONG_REWARD, f"row {number}: {row.reward} for {reward}")


def _score(case: Case, row: RolloutRow, length: int) -> float | None:
    """None where nobody can tell and nothing is claimed."""
    try:
        text = case.means.engine.decode(row.output)
        reward = case.means.length_task.reward(row.problem_id, row.target_length, text, length=length)
        return float(np.float32(reward))
    except Undecided as error:
        if row.reward == 0.0:
            return None
        raise SoftReject(Reason.SCORING_TIMEOUT, str(error)[:200] or f"problem {row.problem_id}") from error


def check_termination(case: Case) -> None:
    """Every completion ends at its first end token or at the maximum length, and says so."""
    eos, longest = case.means.engine.eos, case.settings.max_tokens
    for number, row in enumerate(case.file.rows):
        fault = find_termination_fault(case.own[number], row.finish, eos=eos, max_tokens=longest)
        if fault:
            raise Reject(Reason.BAD_TERMINATION, f"row {number}: {fault}")


def check_proofs(case: Case) -> None:
    """TOPLOC: the proofs are of the last hidden states this policy has for these tokens, in the run's own dtype.

    Soft where the policy itself gives no numbers: that is its trainer's fault.
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
    """The first chunk over the limits, as a person who checks again finds it."""
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
    """The tokens are what seeded sampling gives on this policy's logits, the end token above all."""
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
    """Where sampling is held to the seed, the end token is the one it gives: a long completion must not hide one put
    there in the mean of its margins. Soft, as the paper's P(EOS) > 0.1 is."""
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
    """No completion has a part, too improbable to come twice, that was accepted for somebody else before, or stands in
    another row.

    Tokens that seeded sampling gives are their maker's own, whoever copied them first: so the owner of the prompt keeps its
    credit. Soft: which of two came first is not the same at every validator.
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
    """How many of the row's tokens lie in these runs, if they are together too improbable to come twice and not what the row's
    own seed gives: under another seed a token's margin is about its surprise."""
    reading = case.readings[number]
    inside = np.zeros(len(reading.logprobs), dtype=np.bool_)
    for start in starts:
        inside[start : start + RUN] = True
    if len(starts) == len(case.sketches[number].runs):  # all of it is known: judged as a whole
        inside[:] = True
    surprise = -float(reading.logprobs[inside].sum())
    missed = float(np.minimum(reading.margins[inside], MARGIN_CAP).sum())
    improbable = surprise > case.means.spec.checks.duplicate_bits * math.log(2)
    return int(inside.sum()) if improbable and missed > OWN_SHARE * surprise else 0


def check_joined(case: Case) -> None:
    """Everything measured, joined: what no chunk and no completion shows alone, such as weights of 8 bits."""
    found, joined = case.score, case.means.spec.checks.joined
    if found is None or joined is None:
        return
    if found.p * joined.fault_one_in < 1 <= joined.fault_one_in:
        raise Reject(Reason.JOINED_MISMATCH, str(found))
    if found.p * joined.refuse_one_in < 1:
        raise SoftReject(Reason.JOINED_UNCERTAIN, str(found))


CHECKS: tuple[Check, ...] = (
    Check("size", check_size),
    Check("schema", check_schema),
    Check("bounds", check_bounds),
    Check("units", check_units),
    Check("identity", check_identity),
    Check("problems", check_problems),
    Check("prompts", check_prompts),
    Check("seeds", check_seeds),
    Check("turns", check_turns),
    Check("rewards", check_rewards),
    Check("termination", check_termination),
    Check("proofs", check_proofs, audit=True),
    Check("sampling", check_sampling, audit=True),
    Check("endings", check_endings, audit=True),
    Check("humps", check_humps, audit=True),
    Check("duplicates", check_duplicates, audit=True),
    Check("joined", check_joined, audit=True),
)


def _proof_thresholds(values: Threshold) -> ProofThresholds:
    return ProofThresholds(values.exponent_mismatches, values.mantissa_mean / 1000, values.mantissa_median / 1000)


def _sampling_thresholds(values: Threshold) -> SamplingThresholds:
    return SamplingThresholds(values.margin_mean / 1000, values.margin_largest / 1000)
