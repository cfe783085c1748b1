"""The node's key file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dht.errors import IdentityError, Malformed
from dht.identity import NodeKey, public_key_of, verify


def test_save__load_gives_the_same_node__key_04(tmp_path: Path) -> None:
    key = NodeKey.generate()
    key.save(tmp_path / "keys" / "node.key")
    assert NodeKey.load(tmp_path / "keys" / "node.key").node == key.node
    assert stat.S_IMODE((tmp_path / "keys" / "node.key").stat().st_mode) == 0o400  # KEY-07


def test_save__never_over_a_key__key_01(tmp_path: Path) -> None:
    first = NodeKey.generate()
    first.save(tmp_path / "key")
    with pytest.raises(IdentityError, match="exists already"):
        NodeKey.generate().save(tmp_path / "key")
    assert NodeKey.load(tmp_path / "key").node == first.node


def test_save__unusable_folder_is_said__key_06(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="cannot write"):
        NodeKey.generate().save(tmp_path / ("x" * 300) / "key")


@pytest.mark.parametrize("length", [0, 1, 67, 69])
def test_load__cut_or_longer_file__boot_14(tmp_path: Path, length: int) -> None:
    NodeKey.generate().save(tmp_path / "key")
    (tmp_path / "bad").write_bytes(((tmp_path / "key").read_bytes() + b"\0")[:length])
    with pytest.raises(IdentityError, match="not an ed25519 key file"):
        NodeKey.load(tmp_path / "bad")


def test_load__halves_that_do_not_match__boot_14(tmp_path: Path) -> None:
    NodeKey.generate().save(tmp_path / "key")
    data = (tmp_path / "key").read_bytes()
    (tmp_path / "bad").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IdentityError, match="damaged"):
        NodeKey.load(tmp_path / "bad")


def test_sign__verified_by_the_node_id_alone() -> None:
    key, other = NodeKey(b"a" * 32), NodeKey(b"b" * 32)
    signature = key.sign(b"domain: message")
    assert verify(key.node, b"domain: message", signature)
    assert not verify(key.node, b"domain: other", signature)
    assert not verify(other.node, b"domain: message", signature)
    assert key.sign(b"domain: message") == signature  # deterministic: audits depend on it


@pytest.mark.parametrize("node", ["", "12D3KooW", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "x" * 65])
def test_public_key_of__not_an_ed25519_peer_id(node: str) -> None:
    with pytest.raises(Malformed):
        public_key_of(node)
