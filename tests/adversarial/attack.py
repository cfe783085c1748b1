"""Attacks for the tests of the checks: forged rollouts in which all but one thing is right, and the proof that
exactly one check stops them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dht.identity import NodeKey
from roles.inference.engine import Request
from roles.inference.sampling import SamplingSettings
from roles.rollouts.schema import RolloutRow, write_rollouts
from roles.rules import Reason
from roles.spec import JoinedSpec, NoiseSpec
from roles.toploc.proof import build_proofs
from roles.verification import CHECKS, DuplicateIndex, Finding, Verifier
from roles.worker.generation import Made
from tests.builders import WORKERS, World, open_rollouts, repack, sampling_of, spoil

_CHUNKS = NoiseSpec(levels=(5_000_000,) * 4, unit=10**6, completion=10_000, submission=10_000)
EXACT = JoinedSpec(
    exponents=_CHUNKS,
    mantissas=_CHUNKS,
    margins=_CHUNKS.model_copy(update={"levels": (1_000_000,)}),
    month=1,
    alarm_one_in=10,
)
"""Honest noise of engines that agree to the last bit. One submission is enough for a history."""


def judge(world: World, made: Made, *, key: NodeKey = WORKERS[0], without: str = "", **means: Any) -> Finding:
    """A validator's finding, with every check or without one of them. The submission has passed the gate."""
    admitted = world.trusted.admit_submission(world.row(made.submission, key))
    checks = [check for check in CHECKS if check.name != without]
    verifier = Verifier(spec=world.spec, engine=world.engine, task=world.task, checks=checks, **means)
    return verifier.judge(admitted.submission, seed=admitted.seed, data=made.blob)


def assert_only(
    check: str,
    reason: Reason,
    world: World,
    made: Made,
    *,
    outcome: str = "fault",
    key: NodeKey = WORKERS[0],
    duplicates: Callable[[], DuplicateIndex] = DuplicateIndex,
    lax: dict[str, Any] | None = None,
) -> None:
    """Assert that the check refuses it for this reason, that nothing is accepted, and that it
    would pass without the check."""
    assert check in {item.name for item in CHECKS}
    world.trusted.admit_submission(world.row(made.submission, key))
    before = world.state()
    found = judge(world, made, key=key, duplicates=duplicates())
    assert (found.outcome, found.reason) == (outcome, reason), found
    assert found.detail  # tells whoever re-checks where to look
    assert world.state() == before
    assert not list(world.trusted.accepted())
    passed = judge(world, made, key=key, without=check, duplicates=duplicates(), **(lax or {}))
    assert passed.outcome == "accept", passed


def finished(world: World, rows: Sequence[RolloutRow]) -> tuple[RolloutRow, ...]:
    """Rows with the rewards and proofs that belong to their prompts and tokens, as a clever forger makes them."""
    prefills = world.engine.prefill([(row.prompt, row.output) for row in rows])
    checks = world.spec.checks
    proofs = build_proofs([item.states for item in prefills], topk=checks.topk, chunk=checks.chunk)
    return tuple(
        replace(
            row,
            proof=proof,
            reward=world.task.score(row.problem_id, world.engine.decode(row.output)),
            output_logprobs=None,
        )
        for row, proof in zip(rows, proofs, strict=True)
    )


def forged(world: World, made: Made, rows: Sequence[RolloutRow]) -> Made:
    """The submission with these rows, finished and signed."""
    file = replace(open_rollouts(world, made), rows=finished(world, rows))
    return repack(made, write_rollouts(file), tokens=sum(len(row.output) for row in rows))


def likeliest(world: World, rows: Sequence[RolloutRow]) -> tuple[RolloutRow, ...]:
    """The rows with the policy's most likely answers."""
    return resampled(world, rows, settings=replace(sampling_of(world.spec), temperature=0.0))


def resampled(
    world: World, rows: Sequence[RolloutRow], *, settings: SamplingSettings | None = None
) -> tuple[RolloutRow, ...]:
    """The rows with the policy's genuine completions of their prompts under their seeds."""
    requests = [Request(row.prompt, row.seed) for row in rows]
    completions = world.engine.generate(requests, settings or sampling_of(world.spec))
    return tuple(
        replace(row, output=item.tokens, finish=item.finish) for row, item in zip(rows, completions, strict=True)
    )


def babbled(world: World, row: RolloutRow, seed: int = 0) -> RolloutRow:
    """A row of random tokens of maximum length, without the end token."""
    draw = np.random.default_rng(seed)
    others = [token for token in range(world.engine.vocabulary) if token != world.engine.eos]
    tokens = tuple(int(token) for token in draw.choice(others, size=world.spec.sampling.max_tokens))
    return replace(row, output=tokens, finish="length")


def with_noisy_states(world: World, made: Made) -> Made:
    """Proofs of states that are off by a rounding error or two, as from other weights."""

    def noisy(row: RolloutRow) -> RolloutRow:
        (prefill,) = world.engine.prefill([(row.prompt, row.output)])
        noise = torch.randn(prefill.states.shape, generator=torch.Generator().manual_seed(row.seed % 2**32))
        return replace(row, proof=build_proofs([prefill.states * (1 + 0.00002 * noise)])[0])

    return spoil(world, made, noisy, rows=slice(None))
