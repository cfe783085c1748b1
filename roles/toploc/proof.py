"""TOPLOC proofs (arXiv 2501.16007, section 3): 258 bytes that commit to the largest values of 32 last hidden states.

Byte for byte as the reference library 0.1.6 makes them with `skip_prefill`: for each chunk of 32 states, flattened, the
128 values largest in magnitude; their bfloat16 bit patterns as a polynomial over their positions; modulus and
coefficients as big-endian 16-bit words. A chunk of fewer than `topk` values (the reference raises) commits to all of
them, and the missing coefficients are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from roles.toploc.errors import MalformedProof
from roles.toploc.polynomial import PRIME, SMALLEST_MODULUS, Field, find_injective_moduli, interpolate

TOPK = 128
CHUNK = 32


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One chunk's proof: the modulus and `topk` coefficients, constant term first."""

    modulus: int
    coefficients: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TopValues:
    """Where a chunk's largest values are, and their bfloat16 bit patterns: int64 `[points]` each."""

    indices: Field
    bits: Field


def count_chunks(tokens: int, chunk: int = CHUNK) -> int:
    """Records in the proof of a completion: `ceil(tokens / chunk)`."""
    return -(-tokens // chunk)


def proof_bytes(tokens: int, *, topk: int = TOPK, chunk: int = CHUNK) -> int:
    """Length of the proof of a completion."""
    return count_chunks(tokens, chunk) * 2 * (topk + 1)


def build_proof(states: torch.Tensor, *, topk: int = TOPK, chunk: int = CHUNK) -> bytes:
    """The proof of one completion from its states `[tokens, hidden]` bfloat16; empty for no tokens.  # TOP-03"""
    return build_proofs([states], topk=topk, chunk=chunk)[0]


def build_proofs(completions: Sequence[torch.Tensor], *, topk: int = TOPK, chunk: int = CHUNK) -> list[bytes]:
    """Proofs of many completions at once, states `[tokens, hidden]` bfloat16 each."""
    chunks = [split_chunks(states, chunk) for states in completions]
    records = iter(_build_records([find_top_values(part, topk) for parts in chunks for part in parts], topk))
    return [b"".join(next(records) for _ in parts) for parts in chunks]


def parse_proof(proof: bytes, *, tokens: int, topk: int = TOPK, chunk: int = CHUNK) -> list[ChunkRecord]:
    """The records of the proof of `tokens` tokens.

    Raises `MalformedProof` for a wrong length (TOP-10, TOP-11), a modulus no prover may use (TOP-09) or a coefficient
    outside the field (TOP-12).
    """
    size = 2 * (topk + 1)
    if len(proof) != proof_bytes(tokens, topk=topk, chunk=chunk):
        raise MalformedProof(f"proof of {len(proof)} bytes for {tokens} tokens")
    words = np.frombuffer(proof, dtype=">u2").reshape(-1, size // 2).astype(np.int64)
    moduli, coefficients = words[:, 0], words[:, 1:]
    if ((moduli < SMALLEST_MODULUS) | (moduli > PRIME)).any():
        raise MalformedProof("modulus outside 32769 to 65497")
    if (coefficients >= PRIME).any():
        raise MalformedProof("coefficient outside the field")
    return [ChunkRecord(int(m), tuple(row.tolist())) for m, row in zip(moduli, coefficients, strict=True)]


def split_chunks(states: torch.Tensor, chunk: int) -> list[torch.Tensor]:
    """Flat chunks of `chunk` states each, the last one perhaps shorter. Raises ValueError unless bfloat16.  # TOP-13"""
    if states.dtype != torch.bfloat16 or states.dim() != 2:
        raise ValueError("states must be bfloat16 [tokens, hidden]")
    return [states[i : i + chunk].reshape(-1) for i in range(0, len(states), chunk)]


def find_top_values(flat: torch.Tensor, topk: int) -> TopValues:
    """The `topk` values largest in magnitude. Ties fall as `torch.topk` decides, which byte compatibility needs."""
    indices = flat.abs().topk(min(topk, flat.numel())).indices
    bits = flat[indices].view(torch.int16).numpy().astype(np.int64) & 0xFFFF
    return TopValues(indices.numpy(), bits)


def _build_records(tops: Sequence[TopValues], topk: int) -> list[bytes]:
    """One record per chunk; chunks with equally many points are interpolated together."""
    records = [b""] * len(tops)
    order = sorted(range(len(tops)), key=lambda i: len(tops[i].indices))
    for points, group in groupby(order, key=lambda i: len(tops[i].indices)):
        members = list(group)
        indices = np.stack([tops[i].indices for i in members], axis=1)
        moduli = find_injective_moduli(indices)
        coefficients = interpolate(indices % moduli, np.stack([tops[i].bits for i in members], axis=1))
        words = np.zeros((len(members), topk + 1), dtype=">u2")
        words[:, 0] = moduli
        words[:, 1 : points + 1] = coefficients.T
        for member, row in zip(members, words, strict=True):
            records[member] = row.tobytes()
    return records
