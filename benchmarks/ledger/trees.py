"""Time to build the tree of a tally, to prove one of its leaves and to check the proof."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.ledger.gas import CONTRIBUTIONS, make_leaves
from ledger.merkle import merkle_proof, merkle_root, verify_proof

CHECKS = 200


def measure(quick: bool) -> dict[str, Any]:
    """Seconds by number of leaves."""
    found = {str(count): measure_one(count) for count in (CONTRIBUTIONS[:2] if quick else CONTRIBUTIONS)}
    sys.stdout.write(f"\n{'leaves':28}{'root s':>14}{'proof s':>14}{'check ms':>14}\n")
    for count, row in found.items():
        sys.stdout.write(
            f"{int(count):<28,}{row['root_s']:>14.4f}{row['proof_s']:>14.4f}{1000 * row['check_s']:>14.4f}\n"
        )
    return found


def measure_one(count: int) -> dict[str, float]:
    """CPU seconds of the root, of one proof and of one check."""
    leaves = make_leaves(count)
    begun = time.process_time()
    root = merkle_root(leaves)
    rooted = time.process_time()
    proof = merkle_proof(leaves, leaves[count // 2])
    proved = time.process_time()
    for _ in range(CHECKS):
        if not verify_proof(root, leaves[count // 2], proof):
            raise AssertionError("a proof does not hold")
    checked = time.process_time()
    return {"root_s": rooted - begun, "proof_s": proved - rooted, "check_s": (checked - proved) / CHECKS}
