"""Errors of rollout files."""

from __future__ import annotations

from dht.errors import Malformed


class MalformedRollouts(Malformed):
    """A rollout file that does not match the schema or exceeds a limit; the message is the reason."""
