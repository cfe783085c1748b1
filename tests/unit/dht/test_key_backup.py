"""Backups of node keys: only the password opens them, and no file costs more than allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nacl.pwhash import argon2id

from dht.errors import IdentityError
from dht.identity import NodeKey
from dht.key_backup import MAX_BACKUP, backed_up_node, open_backup, seal_backup

KEY = NodeKey(bytes(range(32)))
CHEAP: dict[str, int] = {"operations": argon2id.OPSLIMIT_MIN, "memory": argon2id.MEMLIMIT_MIN}


def make_backup(**changes: Any) -> bytes:
    return json.dumps({**json.loads(seal_backup(KEY, "correct horse", **CHEAP)), **changes}).encode()


def test_open_backup__gives_the_same_node__key_01() -> None:  # KEY-01
    data = seal_backup(KEY, "correct horse", **CHEAP)
    assert open_backup(data, "correct horse").secret() == KEY.secret()
    assert backed_up_node(data) == KEY.node
    assert KEY.secret() not in data
    assert data != seal_backup(KEY, "correct horse", **CHEAP)


def test_open_backup__refuses_a_wrong_password_without_telling_it() -> None:
    with pytest.raises(IdentityError, match="password is wrong") as refusal:
        open_backup(make_backup(), "battery staple")
    assert "battery" not in str(refusal.value)


@pytest.mark.parametrize(
    "spoil",
    [
        {"operations": 10**9},
        {"memory": 2**40},
        {"operations": 0},
        {"operations": "many"},
        {"kind": "intellect-node-key-backup/2"},
        {"node": 3},
        {"salt": "AA=="},
        {"box": "AA=="},
        {"box": "?"},
        {"node": NodeKey(bytes(32)).node},
    ],
)
def test_open_backup__refuses_what_was_tampered_with(spoil: dict[str, Any]) -> None:
    with pytest.raises(IdentityError):
        open_backup(make_backup(**spoil), "correct horse")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b"[" * 2000, b" " * (MAX_BACKUP + 1)])
def test_open_backup__refuses_junk(data: bytes) -> None:
    with pytest.raises(IdentityError, match="not a backup"):
        open_backup(data, "x")
