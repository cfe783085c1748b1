"""Philox4x32-10, the counter-based generator behind sampling noise.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123).
A counter-based generator has no state: word `i` of a stream is a function of (key, counter), so nothing that happens to
a sequence while it is generated (pre-emption, another batch) can shift its noise.  # TOP-06
It uses only integers, so every device gives the same words.
"""

from __future__ import annotations

import torch

ROUNDS = 10
_LOW32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = torch.Tensor
"""32-bit values, held in int64."""


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> Words:
    """Ten rounds of Philox4x32 over tensors of counters.

    All six words broadcast against each other to some shape `S`. Returns int64 `[*S, 4]`.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # A product may exceed 2^63 and wrap; the masks after the shift undo the sign.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((right >> 32) & _LOW32) ^ c1 ^ k0, ((left >> 32) & _LOW32) ^ c3 ^ k1
        c1, c3 = right & _LOW32, left & _LOW32
        k0, k1 = (k0 + _WEYL[0]) & _LOW32, (k1 + _WEYL[1]) & _LOW32
    return torch.stack([c0, c1, c2, c3], dim=-1)  # by now all four have the same shape
