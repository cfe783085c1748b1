"""Philox4x32-10, the counter-based generator behind sampling noise.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123).
A counter-based generator has no state: word `i` of a stream is a function of (key, counter), so nothing that
happens to a sequence while it is generated (pre-emption, another batch) can move its noise.  # TOP-06
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROUNDS = 10
_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = npt.NDArray[np.uint64]


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> npt.NDArray[np.uint32]:
    """Ten rounds of Philox4x32 over arrays of counters.

    All six words are uint64 arrays holding 32-bit values; they broadcast against each other to some shape `S`.
    Returns uint32 `[*S, 4]`.
    """
    shape = np.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left = c0 * _MULTIPLIERS[0]
        right = c2 * _MULTIPLIERS[1]
        c0 = (right >> _SHIFT32) ^ c1 ^ k0
        c2 = (left >> _SHIFT32) ^ c3 ^ k1
        c1 = right & _LOW32
        c3 = left & _LOW32
        k0 = (k0 + np.uint64(_WEYL[0])) & _LOW32
        k1 = (k1 + np.uint64(_WEYL[1])) & _LOW32
    output = np.empty((*shape, 4), dtype=np.uint32)
    for lane, word in enumerate((c0, c1, c2, c3)):
        output[..., lane] = word
    return output
