"""Errors of inference, by whose fault they are."""

from __future__ import annotations

from dht.errors import PeerError


class BadCheckpoint(PeerError):
    """A checkpoint folder that the engine cannot run: a file missing or unreadable, or weights of another shape."""
