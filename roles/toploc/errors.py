"""Errors of proofs."""

from __future__ import annotations

from dht.errors import Malformed


class MalformedProof(Malformed):
    """Bytes that no honest prover can have made; the message says why."""
