"""Signed rows. An envelope binds a payload to its kind, run, key, subkey, lifetime and sequence, so that
no row can be replayed as another kind, in another run, under another key, or with a longer lifetime (the
idea is DSSE's: sign the exact bytes).

The subkey begins with the signer's node id. `digest` covers the body only, so republishing never changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dht.encoding import digest, pack, unpack
from dht.errors import Malformed
from dht.identity import NodeId, NodeKey, public_key_of, verify

DOMAIN = "intellect-node/envelope/1"
MAX_HINT = 1024  # bytes, enough for a few relay ids
_FIELDS = 9


@dataclass(frozen=True, slots=True)
class Envelope:
    """One signed row. `sequence` and `expiration` are unix milliseconds; `hint` is signed but outside the digest."""

    run: str
    kind: str
    key: str
    subkey: str
    sequence: int
    expiration: int
    hint: bytes
    payload: bytes
    signature: bytes

    @property
    def signer(self) -> NodeId:
        """Node id of the signer: the part of the subkey before the first colon."""
        return self.subkey.partition(":")[0]

    @property
    def digest(self) -> str:
        """Identity of the content, independent of lifetime, sequence and hint."""
        return body_digest(self.run, self.kind, self.payload)


def body_digest(run: str, kind: str, payload: bytes) -> str:
    """Digest of a message's canonical body in a run."""
    return digest("body/1", run, kind, payload)


def _signed_bytes(row: Envelope) -> bytes:
    fields = (row.run, row.kind, row.key, row.subkey, row.sequence, row.expiration, row.hint, row.payload)
    return pack(DOMAIN, *fields)


def seal(
    key: NodeKey,
    *,
    run: str,
    kind: str,
    record_key: str,
    subkey: str,
    sequence: int,
    expiration: int,
    payload: bytes,
    hint: bytes = b"",
) -> Envelope:
    """Sign a row. The subkey must begin with the key's own node id."""
    if subkey.partition(":")[0] != key.node:
        raise ValueError("a row's subkey begins with its signer's node id")
    if len(hint) > MAX_HINT:
        raise ValueError("hint is too long")
    bare = Envelope(run, kind, record_key, subkey, sequence, expiration, hint, payload, b"")
    return Envelope(run, kind, record_key, subkey, sequence, expiration, hint, payload, key.sign(_signed_bytes(bare)))


def to_bytes(row: Envelope) -> bytes:
    """Wire form: the packed fields."""
    fields = (row.run, row.kind, row.key, row.subkey, row.sequence, row.expiration, row.hint, row.payload)
    return pack(*fields, row.signature)


def from_bytes(data: bytes, *, limit: int) -> Envelope:
    """Parse and verify a row of at most `limit` bytes. Raises Malformed. Does not check expiry; the caller does."""
    if len(data) > limit:
        raise Malformed(f"row of {len(data)} bytes is over the limit of {limit}")
    parts = unpack(data)
    if len(parts) != _FIELDS or len(parts[4]) != 8 or len(parts[5]) != 8 or len(parts[6]) > MAX_HINT:
        raise Malformed("row does not have the nine fields of an envelope")
    try:
        run, kind, key, subkey = (part.decode() for part in parts[:4])
    except UnicodeDecodeError as error:
        raise Malformed("row's names are not UTF-8") from error
    sequence, expiration = int.from_bytes(parts[4], "big"), int.from_bytes(parts[5], "big")
    row = Envelope(run, kind, key, subkey, sequence, expiration, parts[6], parts[7], parts[8])
    public_key_of(row.signer)
    if not verify(row.signer, _signed_bytes(row), row.signature):
        raise Malformed("signature does not match")
    return row
