"""Valid-by-default rollout files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roles.rollouts.schema import RolloutFile, RolloutLimits, RolloutRow

LIMITS = RolloutLimits(
    max_bytes=1 << 20,
    max_rows=64,
    max_prompt_tokens=64,
    max_output_tokens=64,
    vocabulary=20,
    max_proof_bytes=2 * 258,
)


def make_row(**changes: Any) -> RolloutRow:
    row = RolloutRow(
        group=0,
        problem_id=17,
        prompt=(1, 2, 3),
        output=(4, 5, 19),
        reward=1.0,
        seed=2**63 - 1,
        temperature=1.0,
        finish="eos",
        proof=bytes(258),
        output_logprobs=(-0.5, -1.0, 0.0),
        target_length=None,
    )
    return replace(row, **changes)


def make_file(*rows: RolloutRow, **changes: Any) -> RolloutFile:
    file = RolloutFile(
        run="ab" * 32,
        node="12D3KooWExample",
        step=7,
        policy="cd" * 32,
        policy_step=5,
        index=3,
        rows=rows or (make_row(), make_row(group=1, output=(6,), output_logprobs=None, target_length=8)),
    )
    return replace(file, **changes)
