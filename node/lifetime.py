"""Ties a child process to its parent: a killed testnet leaves nothing behind (Linux; elsewhere it does nothing)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "INTELLECT_NODE_PARENT"
FORKER_VARIABLE = "INTELLECT_NODE_PARENT_FORKER"
"""Who forked the process, where its parent had another do that."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Request SIGTERM when the parent named in the environment dies, or the process that forked us for it; exit at once if
    it is dead already."""
    parent = os.environ.get(FORKER_VARIABLE) or os.environ.get(PARENT_VARIABLE)
    if not parent or not sys.platform.startswith("linux"):
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != parent:
        sys.exit(1)


def adopt_orphans() -> None:
    """Become the parent of what our children leave behind, so that it can be found and ended."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
