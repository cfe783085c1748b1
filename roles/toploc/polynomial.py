"""Polynomials over the field of 65497 elements, many at a time: interpolation and evaluation, as in TOPLOC's encoding.

Arrays are int64 with points first, `[points, chunks]`, so that each step of the recurrences is one contiguous operation
for all chunks. Products stay below 2^32, so int64 never overflows.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

PRIME = 65497  # the largest prime below 2^16 - 2^5: nearly every bfloat16 pattern is an element (TOPLOC, section 3)
SMALLEST_MODULUS = 32769

Field = npt.NDArray[np.int64]


def interpolate(x: Field, y: Field) -> Field:
    """Coefficients, constant term first, of the lowest-degree polynomials through the points.

    `x`, `y` `[points, chunks]`; the `x` of a chunk must be distinct mod 65497. Returns `[points, chunks]`.
    """
    newton = _divided_differences(x % PRIME, y % PRIME)
    coefficients = np.zeros_like(newton)
    coefficients[0] = newton[-1]
    for degree, j in enumerate(range(len(x) - 2, -1, -1), start=1):
        # q(X) -> q(X) * (X - x_j) + newton_j
        shifted = coefficients[: degree + 1] * -x[j]
        shifted[1:] += coefficients[:degree]
        shifted[0] += newton[j]
        coefficients[: degree + 1] = _reduce(shifted)
    return coefficients


def evaluate(coefficients: Field, x: Field) -> Field:
    """Values `[points, chunks]` of polynomials `[terms, chunks]` at `x` `[points, chunks]`, all mod 65497.

    Evaluated as `P(x) = sum_j (sum_i c[w j + i] x^i) (x^w)^j`, with `w` near the square root of the number of terms.
    The inner sums are one matrix product in float64, exact because they stay below 2^53, so few reductions remain.
    """
    terms, chunks = coefficients.shape
    width = max(1, math.isqrt(terms))
    blocks = -(-terms // width)
    padded = np.zeros((blocks * width, chunks))
    padded[:terms] = coefficients
    powers = _powers(x, width + 1)
    inner = powers[:width].transpose(2, 1, 0).astype(np.float64) @ padded.reshape(blocks, width, chunks).transpose(
        2, 1, 0
    )
    sums = _reduce(inner.astype(np.int64)).transpose(2, 1, 0)  # [blocks, points, chunks]
    values: Field = sums[-1]
    for row in sums[-2::-1]:
        values = _reduce(values * powers[width] + row)
    return values


def _powers(x: Field, count: int) -> Field:
    """`x^0 .. x^(count-1)`: `[count, points, chunks]`."""
    powers = np.ones((count, *x.shape), dtype=np.int64)
    powers[1:2] = _reduce(x)
    for degree in range(2, count):
        powers[degree] = _reduce(powers[degree - 1] * powers[1])
    return powers


def find_injective_moduli(indices: Field) -> Field:
    """For each chunk the largest modulus from 65497 down to 32769 that keeps its indices distinct: `[chunks]`.

    `indices` `[points, chunks]`. Raises ValueError when there is none (chance about 0.1^32000 for random indices).
    """
    return np.array([_find_injective_modulus(column) for column in indices.T], dtype=np.int64)


def _find_injective_modulus(indices: Field) -> int:
    for modulus in range(PRIME, SMALLEST_MODULUS - 1, -1):
        if len(np.unique(indices % modulus)) == len(indices):
            return modulus
    raise ValueError("no injective modulus")


def _divided_differences(x: Field, y: Field) -> Field:
    """Newton's coefficients `y[x_0], y[x_0, x_1], ...` for each chunk."""
    inverses = _inverses()
    table = y.copy()
    for order in range(1, len(x)):
        rise = table[order:] - table[order - 1 : -1]
        table[order:] = _reduce(rise * inverses[x[order:] - x[:-order]])
    return table


def _reduce(values: Field) -> Field:
    """`values mod 65497`, non-negative. In numpy floor division by a scalar is vectorised; the remainder is not."""
    return values - values // PRIME * PRIME


@cache
def _inverses() -> Field:
    """Inverse of `d` at index `d`, for -65497 < d < 65497 (numpy counts negative indices from the end); 0 at 0."""
    base = np.arange(PRIME, dtype=np.int64)
    inverse = np.ones_like(base)
    exponent = PRIME - 2  # Fermat: d^(p-2) = 1/d
    while exponent:
        if exponent & 1:
            inverse = inverse * base % PRIME
        base = base * base % PRIME
        exponent >>= 1
    inverse.setflags(write=False)
    return inverse
