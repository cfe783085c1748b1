"""From an engine's completions to the measurements of a validator's audit. Used by calibration
and by simulated attacks.

`prove` is the worker's half (any engine, honest or not), `observe` the validator's. Blocking; no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roles.inference.engine import Engine, Request, SamplingSettings
from roles.toploc.observation import Observation
from roles.toploc.proof import CHUNK, TOPK, build_proofs
from roles.toploc.readings import Sampled, read_tokens
from roles.toploc.verify import verify_proofs


@dataclass(frozen=True, slots=True)
class Proven:
    """One completion as submitted: the assigned prompt and seed, the tokens, and the proof of their states."""

    prompt: tuple[int, ...]
    seed: int
    output: tuple[int, ...]
    proof: bytes


def prove(
    engine: Engine,
    requests: Sequence[Request],
    settings: SamplingSettings,
    *,
    topk: int = TOPK,
    chunk: int = CHUNK,
    dtype: torch.dtype | None = None,
) -> list[Proven]:
    """Generate in one batch and prove, as an honest worker with this engine does. `dtype` is the run's proof dtype,
    where the engine computes in another."""
    completions = engine.generate(requests, settings)
    states = [each.states if dtype is None else each.states.to(dtype) for each in completions]
    proofs = build_proofs(states, topk=topk, chunk=chunk)
    return [
        Proven(request.prompt, request.seed, completion.tokens, proof)
        for request, completion, proof in zip(requests, completions, proofs, strict=True)
    ]


def observe(
    engine: Engine, proven: Sequence[Proven], settings: SamplingSettings, *, topk: int = TOPK, chunk: int = CHUNK
) -> Observation:
    """Measure one submission as a validator with this engine does, in one packed prefill. Raises `MalformedProof`."""
    prefills = engine.prefill([(each.prompt, each.output) for each in proven])
    pairs = [(prefill.states, each.proof) for prefill, each in zip(prefills, proven, strict=True)]
    sampled = [Sampled(each.output, [each.seed] * len(each.output), range(len(each.output))) for each in proven]
    readings = read_tokens(prefills, sampled, settings, vocabulary=engine.vocabulary)
    return Observation(
        chunks=tuple(map(tuple, verify_proofs(pairs, topk=topk, chunk=chunk))),
        margins=tuple(each.margins for each in readings),
        chunk=chunk,
    )
