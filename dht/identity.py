"""The node's one ed25519 key: libp2p identity and signing key at once. Knows nothing of messages.

The file is libp2p's `PrivateKey` protobuf (type 1, 64 bytes), the form p2pd reads. A peer id is the identity multihash
of the public key's protobuf in base58, so the key can be read back out of the id: an id alone verifies a signature.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

import base58
import structlog
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.public import SealedBox
from nacl.signing import SigningKey, VerifyKey

from dht.disk import make_folder, write_new
from dht.errors import IdentityError, Malformed

NodeId = str
"""A libp2p peer id, always beginning 12D3KooW."""

_KEY_PREFIX = bytes.fromhex("08011240")
_ID_PREFIX = bytes.fromhex("002408011220")
_FILE_LENGTH = len(_KEY_PREFIX) + 64

log = structlog.get_logger()


def node_id_of(public_key: bytes) -> NodeId:
    """Peer id of a 32-byte ed25519 public key."""
    return str(base58.b58encode(_ID_PREFIX + public_key), "ascii")


@lru_cache(maxsize=4096)
def public_key_of(node: NodeId) -> bytes:
    """The 32-byte public key in a peer id. Raises Malformed for any other text."""
    try:
        raw = base58.b58decode(node) if len(node) <= 64 else b""
    except ValueError as error:
        raise Malformed("node id is not base58") from error
    if not raw.startswith(_ID_PREFIX) or len(raw) != len(_ID_PREFIX) + 32 or node_id_of(raw[-32:]) != node:
        raise Malformed("node id is not an ed25519 peer id")
    return raw[-32:]


def verify(node: NodeId, message: bytes, signature: bytes) -> bool:
    """Whether the node signed these bytes. Never raises, whatever a peer sent."""
    try:
        VerifyKey(public_key_of(node)).verify(message, signature)
    except (BadSignatureError, Malformed, ValueError, TypeError):
        return False
    return True


def seal_to(node: NodeId, secret: bytes) -> bytes:
    """Seal a secret in a libsodium sealed box that only this node can open; 48 bytes longer than the secret. Raises
    Malformed for an invalid id."""
    try:
        return SealedBox(VerifyKey(public_key_of(node)).to_curve25519_public_key()).encrypt(secret)
    except (CryptoError, ValueError, RuntimeError) as error:
        raise Malformed("node id is not a key that can be sealed to") from error


class NodeKey:
    """The private key. Signs only bytes that begin with one of our domains (see `dht.envelope`)."""

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

    def secret(self) -> bytes:
        """The 32-byte seed of the key. For an encrypted backup, and nothing else."""
        return bytes(self._key)

    def open_sealed(self, box: bytes) -> bytes:
        """Open what `seal_to` sealed to this node, using the X25519 form of the same key.
        Raises Malformed for any other box."""
        try:
            return SealedBox(self._key.to_curve25519_private_key()).decrypt(box)
        except (CryptoError, ValueError, TypeError) as error:
            raise Malformed("a box that was not sealed to this node") from error

    def save(self, path: Path) -> None:
        """Write the key file, mode 0400, atomically, never over an existing one. Raises IdentityError."""
        try:
            make_folder(path.parent)
            write_new(path, _KEY_PREFIX + bytes(self._key) + bytes(self._key.verify_key), mode=0o400)
        except FileExistsError as error:
            taken = f"{path} exists already; remove it first if you really mean to lose that key"
            raise IdentityError(taken if os.path.lexists(path) else _unwritable(path, error)) from error
        except OSError as error:
            raise IdentityError(_unwritable(path, error)) from error

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """Read a key file. Raises IdentityError that says how to fix it (pitfall BOOT-14). Logs a warning when others
        can read the file or somebody else owns it (pitfall KEY-07)."""
        try:
            data = path.read_bytes()[: _FILE_LENGTH + 1]
        except FileNotFoundError as error:
            raise IdentityError(
                f"no key file at {path}: name the node's by --key (or its folder by --data), or make one: "
                f"intellect-node keys new --key {path}"
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
        _warn_of_rights(path)
        return key


def _unwritable(path: Path, error: OSError) -> str:
    return f"cannot write the key file {path}: {error.strerror}{_in_the_way(path.parent)}"


def _in_the_way(folder: Path) -> str:
    """Name the file that occupies a path where a folder is needed, if that is the problem; otherwise nothing."""
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            return "" if path.is_dir() else f" ({path} is a file, not a folder)"
    return ""


def _warn_of_rights(path: Path) -> None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        log.warning("key.readable_by_others", file=str(path), mode=f"{mode:04o}", advice=f"chmod 400 {path}")
    if found.st_uid != os.getuid():
        log.warning("key.owned_by_another", file=str(path), owner=found.st_uid, advice=f"chown {os.getuid()} {path}")
