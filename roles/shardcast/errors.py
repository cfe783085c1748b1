"""What can go wrong between a blob and its reader, by what to do about it."""

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
    """The blob has more bytes than the caller admits. Nobody's fault can be told from that: a submission may lie too."""


class WrongBytes(PeerError):
    """The bytes are not those the digest names, or are more or fewer than declared."""


class StoreFull(NodeError):
    """The disk budget, or the disk, has no room for this blob."""


class StaleCheckpoint(PeerError):
    """The checkpoint is older than those kept."""


class BadCertificate(NodeError):
    """A file of certificates, or a key, cannot be used; the text says which and why."""
