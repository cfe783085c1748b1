"""Keys on disk: who can open them, and how much a hostile file may cost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from eth_account import Account

from ledger.errors import WalletError
from ledger.keystore import is_encrypted, load_key, load_keystore, load_secret, save_key, stated_address
from ledger.wallet import address_of, new_key
from tests.full_disk import no_file_larger

KEY = new_key()
CHEAP = json.dumps(Account.encrypt(KEY, "correct horse", kdf="pbkdf2", iterations=10))
"""As a wallet program writes it, but with few rounds, so that the tests are fast."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.json"
    path.write_text(CHEAP)
    return path


def never() -> str:
    raise AssertionError("asked for a password")


def test_load_secret__asks_only_for_an_encrypted_file(tmp_path: Path, store: Path) -> None:
    save_key(tmp_path / "plain.key", KEY)
    assert load_secret(tmp_path / "plain.key", never) == KEY
    assert not is_encrypted(tmp_path / "plain.key")
    assert load_secret(store, lambda: "correct horse") == KEY
    with pytest.raises(WalletError, match="password is wrong") as refusal:
        load_secret(store, lambda: "wrong horse")
    assert "horse" not in str(refusal.value)


def test_save_key__a_disk_that_takes_no_more_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with no_file_larger(10), pytest.raises(WalletError, match=r"cannot create .*wallet\.key: File too large"):
        save_key(tmp_path / "wallet.key", KEY)
    save_key(tmp_path / "wallet.key", KEY)
    assert load_key(tmp_path / "wallet.key") == KEY
    assert [path.name for path in tmp_path.iterdir()] == ["wallet.key"]


def test_save_key__its_name_is_on_the_disk_before_the_address_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    save_key(tmp_path / "wallet.key", KEY)
    assert synced[-1] == str(tmp_path)


@pytest.mark.parametrize("digits", [0, 32])
def test_load_key__a_file_cut_short_is_named(tmp_path: Path, digits: int) -> None:
    save_key(tmp_path / "wallet.key", KEY)
    (tmp_path / "wallet.key").write_text(KEY.hex()[:digits])
    with pytest.raises(WalletError, match=r"wallet\.key is not a key file"):
        load_key(tmp_path / "wallet.key")


def test_stated_address__needs_no_password(store: Path) -> None:
    assert stated_address(store) == address_of(KEY)


@pytest.mark.parametrize(
    "spoil",
    [
        {"n": 2**40, "r": 8, "p": 1},
        {"n": 2**18, "r": 8, "p": 64},
        {"c": 10**12, "dklen": 32},
        {"c": 10, "dklen": 2**31},
        {"n": "many"},
        {},
    ],
)
def test_load_keystore__a_strangers_file_costs_little(store: Path, spoil: dict[str, object]) -> None:
    held = json.loads(CHEAP)
    held["crypto"]["kdfparams"] = {**({"salt": "00" * 32} if spoil else {}), **spoil}
    store.write_text(json.dumps(held))
    with pytest.raises(WalletError, match="no key store"):
        load_keystore(store, "correct horse")


@pytest.mark.parametrize("text", ["{}", "{", "[]", "[1]", "{" * 9000, '{"crypto": 3}', "\x00"])
def test_load_keystore__junk(store: Path, text: str) -> None:
    store.write_text(text)
    with pytest.raises(WalletError):
        load_keystore(store, "x")
