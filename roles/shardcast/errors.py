"""What can go wrong between a blob and its reader, grouped by the required reaction."""

from __future__ import annotations

from dht.errors import NodeError, PeerError, TransportError


class NotHeld(TransportError):
    """The relay answers, but does not hold this blob (yet)."""

    def __init__(self) -> None:
        super().__init__("the relay does not hold it")


class RelayRefused(TransportError):
    """The relay answered with a refusal; `code` is its short reason."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"the relay refused ({code}): {detail}")
        self.code = code


class Oversize(TransportError):
    """The blob has more bytes than the caller allows. This proves nobody's fault, since a submission may lie too."""


class WrongBytes(PeerError):
    """The bytes do not match the digest, or their number differs from what was declared."""


class StoreFull(NodeError):
    """The disk budget, or the disk, has no space for this blob."""


class StaleCheckpoint(PeerError):
    """The checkpoint is older than those kept."""


class BadCertificate(NodeError):
    """A certificate file, or a key, cannot be used; the message says which and why."""
