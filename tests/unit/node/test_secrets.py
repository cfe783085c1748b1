"""Passwords come from a file or the environment, and appear in no message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eth_account import Account

from ledger.errors import WalletError
from ledger.keystore import save_key
from ledger.wallet import new_key
from node.config import NodeConfig
from node.errors import ConfigError
from node.secrets import OPERATOR_PASSWORD, WALLET_PASSWORD, new_password, read_operator_key, read_secret

KEY = new_key()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.json"
    path.write_text(json.dumps(Account.encrypt(KEY, "correct horse", kdf="pbkdf2", iterations=10)))
    return path


def test_read_secret__password_from_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\r\n")
    assert read_secret(store, tmp_path / "password") == KEY


def test_read_secret__password_file_of_bytes(store: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\x80\x9e")
    with pytest.raises(ConfigError, match="holds no text, so no password"):
        read_secret(store, tmp_path / "password")


def test_read_secret__password_from_the_environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WALLET_PASSWORD, "wrong horse")
    with pytest.raises(WalletError, match="password is wrong") as refusal:
        read_secret(store)
    assert "horse" not in str(refusal.value)
    monkeypatch.setenv(WALLET_PASSWORD, "correct horse")
    assert read_secret(store) == KEY


def test_read_secret__says_where_the_password_may_come_from(store: Path) -> None:
    with pytest.raises(ConfigError, match=WALLET_PASSWORD):
        read_secret(store)


def test_read_operator_key__has_a_password_of_its_own(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WALLET_PASSWORD, "correct horse")
    with pytest.raises(ConfigError, match="--operator-password-file"):
        read_operator_key(NodeConfig(role="relay", operator_key=store))
    monkeypatch.setenv(OPERATOR_PASSWORD, "correct horse")
    assert read_operator_key(NodeConfig(role="relay", operator_key=store)) == KEY


def test_read_operator_key__plain_files_are_as_good(tmp_path: Path) -> None:
    save_key(tmp_path / "operator.key", KEY)
    assert read_operator_key(NodeConfig(role="relay", operator_key=tmp_path / "operator.key")) == KEY
    assert read_operator_key(NodeConfig(role="worker")) is None


def test_new_password__not_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WALLET_PASSWORD, "short")
    with pytest.raises(ConfigError, match="at least 8"):
        new_password(tmp_path / "wallet.json", None)
