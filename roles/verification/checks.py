"""The checks, in order, cheapest first; `CHECKS` is the list, and the last ones belong to an audit (`audit_checks`).
Each returns, or raises Reject or SoftReject.

Stage 1 (the row itself) is done by the gate: `roles.trusted` and `roles.rules`. Each check sees a case that has passed
all earlier checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roles.rollouts.schema import RolloutRow
from roles.rules import Reason, Reject, SoftReject
from roles.tasks.task import Undecided
from roles.toploc.sampling_check import find_termination_fault
from roles.turns.speaking import find_turn_fault
from roles.verification.audit_checks import (
    check_duplicates,
    check_endings,
    check_humps,
    check_joined,
    check_proofs,
    check_sampling,
)
from roles.verification.case import Case

SCORING_SECONDS = 10.0
"""Time for all rewards of one submission; exceeding it is nobody's provable fault."""
LOGPROB_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `audit` marks those that need the model's forward pass."""

    name: str
    judge: Callable[[Case], None]
    audit: bool = False


def check_size(case: Case) -> None:
    """The blob has the signed length (its digest was checked on arrival)."""
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
    """The signed token count equals the number of the policy's tokens in the file."""
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
    """Every prompt is the assigned problem's text, tokenised; nothing is computed on a prompt that the file chooses."""
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
    """Every turn of the policy ends where its first call does, or with the completion, and between turns is exactly the
    tool's answer. So neither can be passed off as the other."""
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
    """Every reward is what the scorer gives. Soft when scoring takes too long, when a zero reward was claimed, or when
    the task says that machines may differ."""
    task, monotonic = case.means.task, case.means.monotonic
    deadline = monotonic() + SCORING_SECONDS
    for number, row in enumerate(case.file.rows):
        reward = _score(case, row, len(case.own[number]))
        if monotonic() > deadline:
            raise SoftReject(Reason.SCORING_TIMEOUT, f"over {SCORING_SECONDS:.0f} s at row {number} of {len(case.own)}")
        if reward is not None and row.reward != reward:
            # a claim of zero may come from a scorer that ran out of time there
            refusal = Reject if task.is_repeatable and row.reward != 0.0 else SoftReject
            raise refusal(Reason.WRONG_REWARD, f"row {number}: {row.reward} for {reward}")


def _score(case: Case, row: RolloutRow, length: int) -> float | None:
    """The reward; None when it cannot be determined and zero was claimed."""
    try:
        text = case.means.engine.decode(row.output)
        reward = case.means.length_task.reward(row.problem_id, row.target_length, text, length=length)
        return float(np.float32(reward))
    except Undecided as error:
        if row.reward == 0.0:
            return None
        raise SoftReject(Reason.SCORING_TIMEOUT, str(error)[:200] or f"problem {row.problem_id}") from error


def check_termination(case: Case) -> None:
    """Every completion ends at its first end token or at the maximum length, and its finish reason says so."""
    eos, longest = case.means.engine.eos, case.settings.max_tokens
    for number, row in enumerate(case.file.rows):
        fault = find_termination_fault(case.own[number], row.finish, eos=eos, max_tokens=longest)
        if fault:
            raise Reject(Reason.BAD_TERMINATION, f"row {number}: {fault}")


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
