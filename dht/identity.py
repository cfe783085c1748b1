"""The node's one ed25519 key: libp2p identity and signing key at once. Knows nothing of messages.

The file is libp2p's `PrivateKey` protobuf (type 1, 64 bytes), the form p2pd reads. A peer id is the identity multihash
of the public key's protobuf in base58, so the key can be read back out of the id: an id alone verifies a signature.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import base58
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from dht.errors import IdentityError, Malformed

NodeId = str
"""A libp2p peer id, always beginning 12D3KooW."""

_KEY_PREFIX = bytes.fromhex("08011240")
_ID_PREFIX = bytes.fromhex("002408011220")
_FILE_LENGTH = len(_KEY_PREFIX) + 64


def node_id_of(public_key: bytes) -> NodeId:
    """Peer id of a 32-byte ed25519 public key."""
    return str(base58.b58encode(_ID_PREFIX + public_key), "ascii")


@lru_cache(maxsize=4096)
def public_key_of(node: NodeId) -> bytes:
    """The 32-byte public key inside a peer id. Raises Malformed for any other text."""
    try:
        raw = base58.b58decode(node) if len(node) <= 64 else b""
    except ValueError as error:
        raise Malformed("node id is not base58") from error
    if not raw.startswith(_ID_PREFIX) or len(raw) != len(_ID_PREFIX) + 32 or node_id_of(raw[-32:]) != node:
        raise Malformed("node id is not an ed25519 peer id")
    return raw[-32:]


def verify(node: NodeId, message: bytes, signature: bytes) -> bool:
    """Whether the node signed these bytes. Never raises on a peer's data."""
    try:
        VerifyKey(public_key_of(node)).verify(message, signature)
    except (BadSignatureError, Malformed, ValueError, TypeError):
        return False
    return True


class NodeKey:
    """The private half. Signs only bytes that begin with a domain of ours (see `dht.envelope`)."""

    def __init__(self, seed: bytes) -> None:
        self._key = SigningKey(seed)
        self.node: NodeId = node_id_of(bytes(self._key.verify_key))

    @classmethod
    def generate(cls) -> NodeKey:
        """A fresh key from the system's randomness."""
        return cls(os.urandom(32))

    def sign(self, message: bytes) -> bytes:
        """64-byte ed25519 signature (deterministic)."""
        return bytes(self._key.sign(message).signature)

    def save(self, path: Path) -> None:
        """Write the key file, mode 0400, never over an existing one. Raises IdentityError."""
        data = _KEY_PREFIX + bytes(self._key) + bytes(self._key.verify_key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError as error:
            raise IdentityError(
                f"{path} exists already; remove it first if you really mean to lose that key"
            ) from error
        except OSError as error:
            raise IdentityError(f"cannot write the key file {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """Read a key file. Raises IdentityError with the way to mend it (pitfall BOOT-14)."""
        try:
            data = path.read_bytes()[: _FILE_LENGTH + 1]
        except FileNotFoundError as error:
            raise IdentityError(
                f"no key file at {path}; make one with: intellect-node keys new --key {path}"
            ) from error
        except OSError as error:
            raise IdentityError(
                f"cannot read the key file {path}: {error.strerror}; check its owner and mode"
            ) from error
        seed = data[len(_KEY_PREFIX) : len(_KEY_PREFIX) + 32]
        if len(data) != _FILE_LENGTH or not data.startswith(_KEY_PREFIX):
            raise IdentityError(
                f"{path} is not an ed25519 key file; restore it from a backup, or move it away and make a new one"
            )
        key = cls(seed)
        if data[-32:] != public_key_of(key.node):
            raise IdentityError(f"{path} is damaged (its halves do not match); restore it from a backup")
        return key
