"""How a value of the run's number format becomes a field element: which bits of its pattern are committed to.

A proof's dtype is the spec's (`model.dtype`); it is never guessed from the proof's bytes,
which do not name it (TOP-13).

| dtype | encoding | sign, exponent, mantissa | is |
|---|---|---|---|
| bfloat16 | toploc/bf16 | 1, 8, 7 | the pattern, as toploc 0.1.6 |
| float16 | toploc/fp16 | 1, 5, 10 | the pattern, as toploc 0.1.6 |
| float32 | toploc/fp32-1 | 0, low 4 of 8, high 12 of 23 | bits 26 to 11 of the pattern (ADR 0012) |

The largest values of a chunk differ by far less than 2^16, so four bits distinguish their exponents. Sign and high
exponent bits would add nothing to what 128 positions show, while five more bits of mantissa show deviations of 1/4096.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roles.toploc.polynomial import Field


@dataclass(frozen=True, slots=True)
class Encoding:
    """Makes 16-bit words from bit patterns. `dropped` low bits are left out. The low `mantissa_bits` of a word are the
    mantissa, the next `exponent_bits` the exponent; higher bits are ignored in comparisons."""

    name: str
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int
    dropped: int = 0

    def magnitudes(self, states: torch.Tensor) -> torch.Tensor:
        """Patterns without their sign, as integers ordered like the absolute values (NaN above infinity)."""
        kind, mask = (torch.int32, 0x7FFFFFFF) if self.dtype is torch.float32 else (torch.int16, 0x7FFF)
        return states.view(kind) & mask

    def words(self, values: torch.Tensor) -> torch.Tensor:
        """The word for each value in the polynomial: int64, 0 to 65535, on the values' own device."""
        kind = torch.int32 if self.dtype is torch.float32 else torch.int16
        return values.view(kind).to(torch.int64) >> self.dropped & 0xFFFF

    def exponents(self, words: Field) -> Field:
        """The exponent bits of words."""
        return words >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)

    def mantissas(self, words: Field) -> Field:
        """The mantissa bits of words."""
        mantissas: Field = np.bitwise_and(words, (1 << self.mantissa_bits) - 1)
        return mantissas

    def check(self, states: torch.Tensor) -> None:
        """Raises ValueError unless the states have this encoding's dtype and two dimensions."""
        if states.dtype != self.dtype or states.dim() != 2:
            kind = str(self.dtype).removeprefix("torch.")
            raise ValueError(f"states must be {kind} [tokens, hidden], as the run's spec has it")


BF16 = Encoding("toploc/bf16", torch.bfloat16, exponent_bits=8, mantissa_bits=7)
FP16 = Encoding("toploc/fp16", torch.float16, exponent_bits=5, mantissa_bits=10)
FP32 = Encoding("toploc/fp32-1", torch.float32, exponent_bits=4, mantissa_bits=12, dropped=11)

ENCODINGS: dict[str, Encoding] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}
"""Encodings by the spec's `model.dtype`."""


def encoding_of(completions: Sequence[torch.Tensor]) -> Encoding:
    """The encoding for these states' dtype (bfloat16's for an empty sequence). Raises ValueError
    for a dtype that has none."""
    kind = completions[0].dtype if len(completions) else torch.bfloat16
    for encoding in ENCODINGS.values():
        if encoding.dtype == kind:
            return encoding
    raise ValueError(f"there is no proof of states in {str(kind).removeprefix('torch.')}")
