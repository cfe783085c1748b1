"""Limits on a run's rollout files."""

from __future__ import annotations

from roles.rollouts.schema import RolloutLimits
from roles.spec import RunSpec
from roles.toploc.proof import proof_bytes


def rollout_limits(spec: RunSpec, vocabulary: int) -> RolloutLimits:
    """Limits that every honest file satisfies. Proofs cover the policy's tokens only."""
    sampling, checks = spec.sampling, spec.checks
    return RolloutLimits(
        max_bytes=checks.max_blob,
        max_rows=sampling.groups_per_submission * sampling.group_size,
        max_prompt_tokens=sampling.max_prompt_tokens,
        max_output_tokens=spec.max_output_tokens,
        vocabulary=vocabulary,
        max_proof_bytes=proof_bytes(sampling.max_tokens, topk=checks.topk, chunk=checks.chunk),
        max_calls=spec.tool.max_calls if spec.tool else 0,
    )
