"""docs/protocol.md's section on TOPLOC proofs implemented with the standard library alone, for each dtype,
and checked against vectors.

`python tests/vectors/test_toploc.py` writes `toploc-encodings.json` from the product; do that only
with a new encoding version.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest
import torch

from roles.toploc.encoding import ENCODINGS
from roles.toploc.verify import ProofStatistics
from tests.unit.roles.toploc.proof_builders import build_proof, verify_proof

FILE = Path(__file__).with_name("toploc-encodings.json")
PRIME = 65497
TOPK, CHUNK, TOKENS, HIDDEN = 12, 4, 6, 9
LAYOUTS = {"bfloat16": ("<e", 8, 7), "float16": ("<e", 5, 10), "float32": ("<f", 4, 12)}
"""Of a word: exponent and mantissa bits."""


def words_of(dtype: str, data: bytes) -> list[int]:
    """The word of each value, from its little-endian bytes."""
    size = 4 if dtype == "float32" else 2
    patterns = [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
    return [pattern >> 11 & 0xFFFF if dtype == "float32" else pattern for pattern in patterns]


def magnitudes_of(dtype: str, data: bytes) -> list[float]:
    """Absolute values, to find the largest by."""
    if dtype == "bfloat16":  # the upper half of a float32
        data = b"".join(b"\x00\x00" + data[i : i + 2] for i in range(0, len(data), 2))
    letter = "e" if dtype == "float16" else "f"
    return [abs(value) for value in struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)]


def evaluate(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def records_of(proof: bytes) -> list[list[int]]:
    words = [int.from_bytes(proof[i : i + 2], "big") for i in range(0, len(proof), 2)]
    return [words[i : i + TOPK + 1] for i in range(0, len(words), TOPK + 1)]


VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["dtype"])
def test_proof__by_the_document(vector: dict[str, Any]) -> None:
    """Each of the largest values lies on its chunk's polynomial."""
    dtype, data = vector["dtype"], bytes.fromhex(vector["states"])
    words, sizes = words_of(dtype, data), magnitudes_of(dtype, data)
    records = records_of(bytes.fromhex(vector["proof"]))
    assert len(records) == -(-TOKENS // CHUNK)
    for number, (modulus, *coefficients) in enumerate(records):
        chunk = range(number * CHUNK * HIDDEN, min((number + 1) * CHUNK, TOKENS) * HIDDEN)
        largest = sorted(chunk, key=lambda i: -sizes[i])[:TOPK]
        assert modulus == PRIME  # small positions are distinct anyway
        for index in largest:
            assert evaluate(coefficients, (index - chunk.start) % modulus) == words[index] % PRIME


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["dtype"])
def test_statistics__by_the_document(vector: dict[str, Any]) -> None:
    dtype, noisy = vector["dtype"], bytes.fromhex(vector["noisy"])
    _, exponent_bits, mantissa_bits = LAYOUTS[dtype]
    words, sizes = words_of(dtype, noisy), magnitudes_of(dtype, noisy)
    for number, (_, *coefficients) in enumerate(records_of(bytes.fromhex(vector["proof"]))):
        chunk = range(number * CHUNK * HIDDEN, min((number + 1) * CHUNK, TOKENS) * HIDDEN)
        largest = sorted(chunk, key=lambda i: -sizes[i])[:TOPK]
        pairs = [(evaluate(coefficients, index - chunk.start), words[index] % PRIME) for index in largest]
        exponent, mantissa = (1 << exponent_bits) - 1, (1 << mantissa_bits) - 1
        agree = [pair for pair in pairs if len({word >> mantissa_bits & exponent for word in pair}) == 1]
        errors = sorted(abs((one & mantissa) - (other & mantissa)) for one, other in agree)
        middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
        assert vector["statistics"][number] == [TOPK - len(agree), sum(errors) / len(errors), middle]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["dtype"])
def test_vectors__are_what_the_product_makes(vector: dict[str, Any]) -> None:
    assert vector == make(vector["dtype"])


def test_vectors__of_every_dtype() -> None:
    assert [vector["dtype"] for vector in VECTORS] == list(ENCODINGS)


def make(dtype: str) -> dict[str, Any]:
    """The vector of one dtype, from the product. No two magnitudes of a chunk are equal, so nothing hangs on ties."""
    encoding = ENCODINGS[dtype]
    values = [(-1) ** i * (1 + (i * 37 % 54) / 64) * 2.0 ** (i % 3) for i in range(TOKENS * HIDDEN)]
    states = torch.tensor(values).view(TOKENS, HIDDEN).to(encoding.dtype)
    noisy = (states.float() * (1 + 0.02 * torch.linspace(-1, 1, HIDDEN))).to(encoding.dtype)
    proof = build_proof(states, encoding=encoding, topk=TOPK, chunk=CHUNK)
    found = verify_proof(noisy, proof, encoding=encoding, topk=TOPK, chunk=CHUNK)
    return {
        "dtype": dtype,
        "states": _bytes(states).hex(),
        "noisy": _bytes(noisy).hex(),
        "proof": proof.hex(),
        "statistics": [_plain(item) for item in found],
    }


def _bytes(states: torch.Tensor) -> bytes:
    return states.contiguous().view(torch.uint8).numpy().tobytes()


def _plain(item: ProofStatistics) -> list[float]:
    return [item.exponent_mismatches, item.mantissa_mean, item.mantissa_median]


if __name__ == "__main__":
    FILE.write_text(json.dumps([make(dtype) for dtype in ENCODINGS], indent=1) + "\n")
