"""Resets Python's recursion limit to a value at which a deeply nested text from a peer is an
error, not the end of the process.

Importing eth-account (through py_ecc) or py-evm raises it to 100,000. The JSON parser would then follow a peer's
`[[[[..` past the end of the C stack.
"""

from __future__ import annotations

import sys

SAFE = 1000
"""Python's own default."""


def restore_recursion_limit() -> None:
    """Restore the limit. Call this right after those imports."""
    sys.setrecursionlimit(min(sys.getrecursionlimit(), SAFE))
