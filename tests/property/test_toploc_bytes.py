"""A proof from a stranger is judged or is `MalformedProof`; an honest one always passes exactly."""

from __future__ import annotations

import contextlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.toploc.errors import MalformedProof
from roles.toploc.proof import build_proof, proof_bytes
from roles.toploc.verify import ProofStatistics, verify_proof

STATES = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
PROOF = build_proof(STATES)


@given(st.binary(max_size=3 * 258) | st.binary(min_size=516, max_size=516))
@settings(max_examples=200, deadline=None)
def test_verify_proof__any_bytes(proof: bytes) -> None:
    with contextlib.suppress(MalformedProof):
        assert all(isinstance(chunk, ProofStatistics) for chunk in verify_proof(STATES, proof))


@given(st.lists(st.tuples(st.integers(0, len(PROOF) - 1), st.integers(0, 255)), max_size=8))
@settings(max_examples=200, deadline=None)
def test_verify_proof__bytes_changed(changes: list[tuple[int, int]]) -> None:
    proof = bytearray(PROOF)
    for position, value in changes:
        proof[position] = value
    with contextlib.suppress(MalformedProof):
        assert len(verify_proof(STATES, bytes(proof))) == 2


@given(
    st.integers(0, 40),
    st.integers(1, 48),
    st.integers(0, 2**32),
    st.sampled_from([1.0, 1e-3, 1e30, 0.0]),
    st.sampled_from([(16, 8), (128, 32)]),
)
@settings(max_examples=100, deadline=None)
def test_verify_proof__own_states_agree_exactly(
    tokens: int, hidden: int, seed: int, scale: float, shape: tuple[int, int]
) -> None:
    topk, chunk = shape
    generator = torch.Generator().manual_seed(seed)
    states = (scale * torch.randn(tokens, hidden, generator=generator)).to(torch.bfloat16)
    proof = build_proof(states, topk=topk, chunk=chunk)
    assert len(proof) == proof_bytes(tokens, topk=topk, chunk=chunk)
    assert set(verify_proof(states, proof, topk=topk, chunk=chunk)) <= {ProofStatistics(0, 0.0, 0.0)}
