"""The checks, in order, cheapest first; `CHECKS` is the list. Each returns, or raises Reject or SoftReject.

Stage 1 (the row itself) is the gate's: `roles.trusted` and `roles.rules`. Each check sees a case that passed all the
checks before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roles.inference.sampling import token_logprobs
from roles.rollouts.schema import RolloutRow
from roles.rules import Reason, Reject, SoftReject
from roles.spec import Threshold
from roles.tasks.task import Undecided
from roles.toploc.errors import MalformedProof
from roles.toploc.sampling_check import (
    SamplingThresholds,
    find_termination_fault,
    is_two_humped,
    judge_sampling,
    summarise_margins,
)
from roles.toploc.verify import Judgement, ProofThresholds, judge, verify_proofs, worst
from roles.turns.speaking import find_turn_fault
from roles.verification.case import Case

SCORING_SECONDS = 10.0
"""Time for all rewards of one submission; more is nobody's provable fault."""
END_MARGIN = 1.0
"""Numerical noise moves a score by a few thousandths; an end token further off was put there."""
LOGPROB_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `audit` marks those that need the model's forward pass."""

    name: str
    judge: Callable[[Case], None]
    audit: bool = False


def check_size(case: Case) -> None:
    """The blob is as long as signed (its digest was checked as it arrived)."""
    if len(case.data) != case.submission.size:
        raise Reject(Reason.WRONG_SIZE, f"{len(case.data)} bytes")


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
    if sum(map(len, case.own)) != case.submission.tokens:
        raise Reject(Reason.WRONG_UNITS)


def check_identity(case: Case) -> None:
    """The file names the run, node, step, policy and index it was signed for."""
    file, signed = case.file, case.submission
    named = (file.run, file.node, file.step, file.policy, file.policy_step, file.index)
    if named != (case.means.run, signed.node, signed.step, signed.policy, signed.policy_step, signed.index):
        raise Reject(Reason.WRONG_IDENTITY)


def check_problems(case: Case) -> None:
    """Every row answers the assigned problem, under the assigned length target."""
    for number, (row, expected) in enumerate(zip(case.file.rows, case.expected, strict=False)):
        if (row.group, row.problem_id, row.target_length) != (expected.group, expected.problem, expected.target):
            raise Reject(Reason.WRONG_PROBLEM, f"row {number}")


def check_prompts(case: Case) -> None:
    """Every prompt is the assigned problem's text, in tokens; nothing is computed on a prompt of the file's choosing."""
    prompts: dict[tuple[int, int | None], tuple[int, ...]] = {}
    for number, row in enumerate(case.file.rows):
        asked = (row.problem_id, row.target_length)
        if asked not in prompts:
            prompts[asked] = case.means.engine.encode(case.means.asking.prompt(*asked))
        if row.prompt != prompts[asked]:
            raise Reject(Reason.WRONG_PROMPT, f"row {number}")


def check_seeds(case: Case) -> None:
    """Every row was sampled with its assigned seed."""
    for number, (row, expected) in enumerate(zip(case.file.rows, case.expected, strict=False)):
        if row.seed != expected.seed:
            raise Reject(Reason.WRONG_SEED, f"row {number}")


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
    """Every reward is what the scorer gives. Soft when scoring takes too long, or when the task says that machines differ."""
    task, monotonic = case.means.task, case.means.monotonic
    deadline = monotonic() + SCORING_SECONDS
    for number, row in enumerate(case.file.rows):
        reward = _score(case, row, len(case.own[number]))
        if monotonic() > deadline:
            raise SoftReject(Reason.SCORING_TIMEOUT)
        if reward is not None and row.reward != reward:
            refusal = Reject if task.is_repeatable else SoftReject
            raise refusal(Reason.WRONG_REWARD, f"row {number}: {row.reward} for {reward}")


def _score(case: Case, row: RolloutRow, length: int) -> float | None:
    """None where nobody can tell and nothing is claimed."""
    try:
        text = case.means.engine.decode(row.output)
        reward = case.means.asking.reward(row.problem_id, row.target_length, text, length=length)
        return float(np.float32(reward))
    except Undecided as error:
        if row.reward == 0.0:
            return None
        raise SoftReject(Reason.SCORING_TIMEOUT) from error


def check_termination(case: Case) -> None:
    """Every completion ends at its first end token or at the maximum length, and says so."""
    eos, longest = case.means.engine.eos, case.settings.max_tokens
    for number, row in enumerate(case.file.rows):
        fault = find_termination_fault(case.own[number], row.finish, eos=eos, max_tokens=longest)
        if fault:
            raise Reject(Reason.BAD_TERMINATION, f"row {number}: {fault}")


def check_proofs(case: Case) -> None:
    """TOPLOC: the proofs are of the last hidden states this policy has for these tokens."""
    checks = case.means.spec.checks
    pairs = [(item.states, row.proof) for item, row in zip(case.prefill, case.file.rows, strict=True)]
    try:
        case.chunks = verify_proofs(pairs, topk=checks.topk, chunk=checks.chunk)
    except MalformedProof as error:
        raise Reject(Reason.PROOF_MALFORMED, str(error)) from error
    chunks = [part for parts in case.chunks for part in parts]
    case.proof_statistics = worst(chunks)
    found = judge(chunks, honest=_proof_thresholds(checks.honest), fraud=_proof_thresholds(checks.fraud))
    if found is Judgement.FRAUD:
        raise Reject(Reason.PROOF_MISMATCH, str(case.proof_statistics))
    if found is Judgement.DOUBTFUL:
        raise SoftReject(Reason.PROOF_UNCERTAIN, str(case.proof_statistics))


def check_sampling(case: Case) -> None:
    """The tokens are what seeded sampling gives on this policy's logits, the end token above all."""
    checks = case.means.spec.checks
    found = judge_sampling(
        [summarise_margins([part]) for part in case.margins],
        honest=_sampling_thresholds(checks.honest),
        fraud=_sampling_thresholds(checks.fraud),
    )
    if found is Judgement.FRAUD:
        raise Reject(Reason.SAMPLING_MISMATCH)
    if found is Judgement.DOUBTFUL:
        raise SoftReject(Reason.SAMPLING_UNCERTAIN)


def check_endings(case: Case) -> None:
    """Where sampling is held to the seed, the end token is the one it gives: a long completion must not hide one put
    there in the mean of its margins. Soft, as the paper's P(EOS) > 0.1 is."""
    if case.means.spec.checks.fraud.margin_mean >= 5000:  # sampling is not checked in this run
        return
    for number, (row, part) in enumerate(zip(case.file.rows, case.margins, strict=True)):
        if row.finish == "eos" and part[-1] > END_MARGIN:
            raise SoftReject(Reason.BAD_TERMINATION, f"row {number}: an end token that seeded sampling does not give")


def check_humps(case: Case) -> None:
    """The chosen tokens' probabilities have one hump: two mean that another model decoded and this one prefilled."""
    logits = np.concatenate(case.logits)
    tokens = [token for said in case.own for token in said]
    if is_two_humped(logits, tokens, case.settings):
        raise SoftReject(Reason.TWO_HUMPED)


def check_duplicates(case: Case) -> None:
    """No completion too improbable to come twice was accepted for somebody else before.

    A row whose every token is the seeded choice is its maker's own, whoever copied it first. Soft: which of two came
    first is not the same at every validator.
    """
    if case.settings.temperature == 0.0:  # greedy completions of one prompt are all alike
        return
    seen: set[str] = set()
    for number, sequence in enumerate(case.sequences):
        owner = case.means.duplicates.owner(sequence)
        taken = sequence in seen or owner not in (None, case.place)
        seen.add(sequence)
        if taken and _is_improbable(case, number) and not (case.margins[number] <= 0).all():
            raise SoftReject(Reason.DUPLICATE, f"row {number} of {len(case.own[number])} tokens")


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


def _is_improbable(case: Case, number: int) -> bool:
    """Whether the row's probability under the policy is below 2^-duplicate_bits."""
    logprobs = token_logprobs(case.logits[number], case.own[number], case.settings.temperature)
    return float(logprobs.sum()) < -case.means.spec.checks.duplicate_bits * math.log(2)


def _proof_thresholds(values: Threshold) -> ProofThresholds:
    return ProofThresholds(values.exponent_mismatches, values.mantissa_mean / 1000, values.mantissa_median / 1000)


def _sampling_thresholds(values: Threshold) -> SamplingThresholds:
    return SamplingThresholds(values.margin_mean / 1000, values.margin_largest / 1000)
