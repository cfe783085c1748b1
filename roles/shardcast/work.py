"""Proof of work before a relay sponsors a registration: cheap for one newcomer, expensive for a flood. Pure."""

from __future__ import annotations

from dht.encoding import digest

WORK_BITS = 16
"""Leading zero bits: 65,536 digests on average, about 0.2 s."""
MAX_COUNTER = 2**63


def is_work_done(node: str, nonce: int, counter: int, *, bits: int = WORK_BITS) -> bool:
    """Whether sha256(pack("sponsor-work/1", node, nonce, counter)) begins with `bits` zero bits."""
    if not 0 <= counter < MAX_COUNTER or not 0 <= nonce < MAX_COUNTER:
        return False
    return int(digest("sponsor-work/1", node, nonce, counter), 16) >> (256 - bits) == 0


def compute_work(node: str, nonce: int, *, bits: int = WORK_BITS) -> int:
    """The smallest counter that suffices."""
    counter = 0
    while not is_work_done(node, nonce, counter, bits=bits):
        counter += 1
    return counter
