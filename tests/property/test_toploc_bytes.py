"""A proof from a stranger is judged or is `MalformedProof`; an honest one always passes exactly."""

from __future__ import annotations

import contextlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.toploc.encoding import ENCODINGS, Encoding
from roles.toploc.errors import MalformedProof
from roles.toploc.proof import parse_proof, proof_bytes
from roles.toploc.verify import ProofStatistics
from tests.unit.roles.toploc.proof_builders import build_proof, verify_proof

STATES = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
PROOF = build_proof(STATES)


@given(st.binary(max_size=3 * 258) | st.binary(min_size=516, max_size=516), st.sampled_from(list(ENCODINGS.values())))
@settings(max_examples=200, deadline=None)
def test_verify_proof__any_bytes(proof: bytes, encoding: Encoding) -> None:
    with contextlib.suppress(MalformedProof):
        statistics = verify_proof(STATES.to(encoding.dtype), proof, encoding=encoding)
        assert all(isinstance(chunk, ProofStatistics) for chunk in statistics)


@given(st.binary(max_size=64), st.integers(0, 9), st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_parse_proof__any_bytes_and_shape(proof: bytes, tokens: int, topk: int, chunk: int) -> None:
    with contextlib.suppress(MalformedProof):
        assert parse_proof(proof, tokens=tokens, topk=topk, chunk=chunk).coefficients.shape[1] == topk


@given(st.lists(st.integers(0, 0xFFFF), min_size=64, max_size=64), st.binary(min_size=34, max_size=34))
@settings(max_examples=200, deadline=None)
def test_build_and_verify__any_activations(patterns: list[int], proof: bytes) -> None:
    """NaN, infinities and denormal numbers among them."""
    words = torch.tensor(patterns, dtype=torch.int32).to(torch.int16)
    for states in (words.view(torch.bfloat16), words.view(torch.float16), words.view(torch.float32)):
        matrix = states.view(4, -1)
        built = build_proof(matrix, topk=8, chunk=2)
        assert set(verify_proof(matrix, built, topk=8, chunk=2)) <= {ProofStatistics(0, 0.0, 0.0)}
        with contextlib.suppress(MalformedProof):
            verify_proof(matrix, proof, topk=8, chunk=4)


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
