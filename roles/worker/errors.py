"""Reasons why a worker cannot go on. The text is for its owner."""

from __future__ import annotations

from dht.errors import NodeError


class Ejected(NodeError):
    """The validators have ejected the node from the run by a strike."""
