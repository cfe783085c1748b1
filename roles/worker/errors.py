"""Why a worker cannot go on. The text is for its owner."""

from __future__ import annotations

from dht.errors import NodeError


class Ejected(NodeError):
    """The validators have struck the node out of the run."""
