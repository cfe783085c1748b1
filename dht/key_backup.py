"""A node key as an encrypted file that may lie anywhere: argon2id over a password, then a libsodium secret box.

The box authenticates: a wrong password and a damaged file are told the same way, and nothing of either is used.
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
"""256 MiB and about a second: what a guess costs."""
MAX_OPERATIONS, MAX_MEMORY = 8, 2**30


def seal_backup(key: NodeKey, password: str, *, operations: int = OPERATIONS, memory: int = MEMORY) -> bytes:
    """The backup file's content. The node id stands in it in clear: it is a label, checked when it is opened."""
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
    """The key of a backup. Raises IdentityError for a wrong password, or data that is not a backup."""
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
    """The node a backup says it is of, without its password. Raises IdentityError when the data is not a backup."""
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
