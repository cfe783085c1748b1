"""TOPLOC proofs (arXiv 2501.16007, section 3): 258 bytes that commit to the largest values of 32 last hidden states.

In bfloat16 and float16 the bytes equal those of the reference library 0.1.6 with `skip_prefill`. For each chunk of 32
states, flattened, the 128 values largest in magnitude are taken; their bit patterns are encoded as a polynomial over
their positions; modulus and coefficients are stored as big-endian 16-bit words. A chunk of fewer than `topk` values
(where the reference raises) commits to all of them, and the missing coefficients are 0. float32 uses its own words
(`roles.toploc.encoding`) in the same format.

The search for the largest values runs on the states' own device, and only those values leave it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roles.toploc.encoding import Encoding, encoding_of
from roles.toploc.errors import MalformedProof
from roles.toploc.polynomial import PRIME, SMALLEST_MODULUS, Field, find_injective_moduli, interpolate

TOPK = 128
CHUNK = 32


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The parsed proof of one or more completions: moduli `[chunks]` and coefficients `[chunks, topk]`, constant terms
    first; int64."""

    moduli: Field
    coefficients: Field


@dataclass(frozen=True, slots=True, eq=False)
class TopValues:
    """The largest values of all chunks that have equally many: their positions and the words that encode them, int64
    `[points, chunks]`. `chunks` are the chunks' numbers, counted over all completions."""

    chunks: tuple[int, ...]
    indices: Field
    words: Field


def count_chunks(tokens: int, chunk: int = CHUNK) -> int:
    """Number of records in a completion's proof: `ceil(tokens / chunk)`."""
    return -(-tokens // chunk)


def proof_bytes(tokens: int, *, topk: int = TOPK, chunk: int = CHUNK) -> int:
    """Length in bytes of a completion's proof."""
    return count_chunks(tokens, chunk) * 2 * (topk + 1)


def build_proofs(
    completions: Sequence[torch.Tensor], *, encoding: Encoding | None = None, topk: int = TOPK, chunk: int = CHUNK
) -> list[bytes]:
    """Build the proofs of many completions at once, states `[tokens, hidden]` each; empty for no tokens.  # TOP-03

    Without `encoding` the states' dtype decides. With it (the run's), states of another dtype raise ValueError.
    """
    encoding = encoding or encoding_of(completions)
    counts = [count_chunks(len(states), chunk) for states in completions]
    records = [b""] * sum(counts)
    for tops in find_top_values(completions, encoding=encoding, topk=topk, chunk=chunk):
        for number, record in zip(tops.chunks, _build_records(tops, topk), strict=True):
            records[number] = record
    remaining = iter(records)
    return [b"".join(next(remaining) for _ in range(count)) for count in counts]


def parse_proof(proof: bytes, *, tokens: int, topk: int = TOPK, chunk: int = CHUNK) -> Records:
    """The records of the proof of `tokens` tokens.

    Raises `MalformedProof` for a wrong length (TOP-10, TOP-11), a modulus no prover may use (TOP-09) or a coefficient
    outside the field (TOP-12).
    """
    expected = proof_bytes(tokens, topk=topk, chunk=chunk)
    if len(proof) != expected:
        raise MalformedProof(f"proof of {len(proof)} bytes for {tokens} tokens, not of {expected}")
    words = np.frombuffer(proof, dtype=">u2").reshape(-1, topk + 1).astype(np.int64)
    moduli, coefficients = words[:, 0], words[:, 1:]
    if (wrong := (moduli < SMALLEST_MODULUS) | (moduli > PRIME)).any():
        at = int(wrong.argmax())
        raise MalformedProof(f"modulus {moduli[at]} of chunk {at} is outside {SMALLEST_MODULUS} to {PRIME}")
    if (coefficients >= PRIME).any():
        at = int((coefficients >= PRIME).any(axis=1).argmax())
        raise MalformedProof(f"a coefficient of chunk {at} is not below {PRIME}")
    return Records(moduli, coefficients)


def find_top_values(
    completions: Iterable[torch.Tensor], *, encoding: Encoding, topk: int, chunk: int
) -> list[TopValues]:
    """The `topk` values of each chunk that are largest in magnitude, grouped by their number.

    `torch.topk` decides ties, which byte compatibility requires. Raises ValueError for states of another dtype.
    """
    found: defaultdict[int, list[tuple[torch.Tensor, torch.Tensor, range]]] = defaultdict(list)
    first = 0
    for states in completions:
        for rows in _chunk_rows(states, encoding, chunk):
            indices = encoding.magnitudes(rows).topk(min(topk, rows.shape[1]), dim=1).indices
            words = encoding.words(rows.gather(1, indices))
            found[indices.shape[1]].append((indices, words, range(first, first + len(rows))))
            first += len(rows)
    return [
        TopValues(
            chunks=tuple(number for _, _, numbers in parts for number in numbers),
            indices=torch.cat([indices for indices, _, _ in parts]).cpu().numpy().T,
            words=torch.cat([words for _, words, _ in parts]).cpu().numpy().T,
        )
        for parts in found.values()
    ]


def _chunk_rows(states: torch.Tensor, encoding: Encoding, chunk: int) -> list[torch.Tensor]:
    """Flat chunks: `[chunks, chunk * hidden]` for the full ones, `[1, rest]` for a shorter last one."""
    encoding.check(states)
    whole = len(states) - len(states) % chunk
    states = states.contiguous()
    rows = [states[:whole].view(-1, chunk * states.shape[1])] if whole else []
    return rows if whole == len(states) else [*rows, states[whole:].view(1, -1)]


def _build_records(tops: TopValues, topk: int) -> list[bytes]:
    """One record per chunk."""
    points, count = tops.indices.shape
    moduli = find_injective_moduli(tops.indices)
    words = np.zeros((count, topk + 1), dtype=">u2")
    words[:, 0] = moduli
    words[:, 1 : points + 1] = interpolate(tops.indices % moduli, tops.words).T
    return [row.tobytes() for row in words]
