"""The node's key file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import structlog.testing

from dht.errors import IdentityError, Malformed
from dht.identity import NodeKey, public_key_of, seal_to, verify


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


def test_save__a_file_where_the_folder_should_be_is_named__key_06(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(IdentityError, match="keys is a file, not a folder"):
        NodeKey.generate().save(tmp_path / "keys" / "key")
    with pytest.raises(IdentityError, match="keys is a file, not a folder"):
        NodeKey.generate().save(tmp_path / "keys" / "deep" / "key")


def test_save__leftover_of_a_killed_process_neither_stops_it_nor_stays(tmp_path: Path) -> None:
    (tmp_path / f".key.{os.getpid()}").write_bytes(b"half a k")
    key = NodeKey.generate()
    key.save(tmp_path / "key")
    assert NodeKey.load(tmp_path / "key").node == key.node
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_save__never_through_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError):
        NodeKey.generate().save(tmp_path / "key")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("mode", "warnings"), [(0o400, 0), (0o600, 0), (0o640, 1), (0o444, 1)])
def test_load__warns_of_a_key_that_others_can_read__key_07(tmp_path: Path, mode: int, warnings: int) -> None:
    NodeKey.generate().save(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with structlog.testing.capture_logs() as logs:
        NodeKey.load(tmp_path / "key")
    assert [line["event"] for line in logs] == ["key.readable_by_others"] * warnings


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


def test_seal_to__only_that_node_opens_it() -> None:
    key, other = NodeKey.generate(), NodeKey.generate()
    box = seal_to(key.node, b"secret")
    assert key.open_sealed(box) == b"secret"
    assert box != seal_to(key.node, b"secret")
    for opener, spoilt in ((other, box), (key, box[:-1]), (key, bytes([box[0] ^ 1]) + box[1:]), (key, b"")):
        with pytest.raises(Malformed, match="not sealed to this node"):
            opener.open_sealed(spoilt)
