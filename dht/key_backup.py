"""An encrypted backup of a node key that is safe to store anywhere: argon2id over a
password, then a libsodium secret box.

The box is authenticated. A wrong password and a damaged file give the same error, and no part of either is used.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id
from nacl.secret import SecretBox
from nacl.utils import random

from dht.errors import IdentityError
from dht.identity import NodeKey

KIND = "intellect-node-key-backup/1"
MAX_BACKUP = 4096
OPERATIONS = argon2id.OPSLIMIT_MODERATE
MEMORY = argon2id.MEMLIMIT_MODERATE
"""256 MiB and about a second: the cost of one password guess."""
MAX_OPERATIONS, MAX_MEMORY = 8, 2**30


def seal_backup(key: NodeKey, password: str, *, operations: int = OPERATIONS, memory: int = MEMORY) -> bytes:
    """Content of the backup file. It contains the node id in clear as a label, which is checked on opening."""
    salt = random(argon2id.SALTBYTES)
    box = SecretBox(_derive(password, salt, operations, memory)).encrypt(key.secret())
    fields = {
        "kind": KIND,
        "node": key.node,
        "operations": operations,
        "memory": memory,
        "salt": b64encode(salt).decode(),
        "box": b64encode(box).decode(),
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def open_backup(data: bytes, password: str) -> NodeKey:
    """Decrypt the key in a backup. Raises IdentityError for a wrong password, or data that is not a backup."""
    fields = _parse(data)
    try:
        salt, box = b64decode(fields["salt"], validate=True), b64decode(fields["box"], validate=True)
        secret = SecretBox(_derive(password, salt, fields["operations"], fields["memory"])).decrypt(box)
        key = NodeKey(secret)
    except (CryptoError, ValueError, TypeError, KeyError) as error:
        raise IdentityError("the password is wrong, or the backup is damaged") from error
    if key.node != fields["node"]:
        raise IdentityError("the backup is damaged: its key is not the node it names")
    return key


def backed_up_node(data: bytes) -> str:
    """The node id that a backup is labelled with; needs no password. Raises
    IdentityError when the data is not a backup."""
    return str(_parse(data)["node"])


def _parse(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data) if len(data) <= MAX_BACKUP else {}
        is_backup = fields["kind"] == KIND and isinstance(fields["node"], str)
        is_cheap = 0 < fields["operations"] <= MAX_OPERATIONS and 0 < fields["memory"] <= MAX_MEMORY
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IdentityError("not a backup of a node key") from error
    if not is_backup or not is_cheap:
        raise IdentityError("not a backup of a node key")
    found: dict[str, Any] = fields
    return found


def _derive(password: str, salt: bytes, operations: int, memory: int) -> bytes:
    return bytes(argon2id.kdf(SecretBox.KEY_SIZE, password.encode(), salt, opslimit=operations, memlimit=memory))
