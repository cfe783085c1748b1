"""Python's recursion limit, kept where a nested text from a peer is an error and not the end of the process.

eth-account (through py_ecc) and py-evm raise it to 100,000 when they are imported. The JSON parser then goes as deep as a
peer's `[[[[..` asks for, past the end of the C stack.
"""

from __future__ import annotations

import sys

SAFE = 1000
"""Python's own default."""


def restore_recursion_limit() -> None:
    """Called right after those imports."""
    sys.setrecursionlimit(min(sys.getrecursionlimit(), SAFE))
