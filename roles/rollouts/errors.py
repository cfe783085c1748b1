"""Errors of rollout files."""

from __future__ import annotations

from dht.errors import Malformed


class MalformedRollouts(Malformed):
    """A rollout file that is not of the schema or breaks a bound; the text is the reason."""
