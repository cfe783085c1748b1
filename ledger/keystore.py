"""Secret keys on disk: encrypted key stores (V3, which every wallet program reads) and plain hex files.

Owns formats and file permissions. The caller obtains the password; it never appears in a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eth_account import Account

from ledger.disk import write_new
from ledger.errors import WalletError
from ledger.recursion import restore_recursion_limit
from ledger.wallet import address_of, checked_address

restore_recursion_limit()

MAX_KEY_FILE = 8192
MIN_PASSWORD = 8
"""Minimum length of a new password: a key store is only as strong as its password."""
MAX_SCRYPT_MEMORY = 2**30
"""Bytes (128 n r). A stranger's file must not exhaust the machine's memory. Common key stores use 256 MiB."""
MAX_ROUNDS = 10_000_000

Json = dict[str, Any]


def save_keystore(path: Path, key: bytes, password: str) -> None:
    """Write an encrypted V3 key store, mode 0600. Raises WalletError when the file exists."""
    _write_new(path, json.dumps(Account.encrypt(key, password)) + "\n")


def load_keystore(path: Path, password: str) -> bytes:
    """Secret key of a V3 key store; takes about a second. Raises WalletError for a bad file or a wrong password."""
    try:
        held = json.loads(_read(path))
        _check_cost(held)
        return bytes(Account.decrypt(held, password))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WalletError(f"{path} is no key store, or the password is wrong") from error


def save_key(path: Path, key: bytes) -> None:
    """Write a secret key as hex, mode 0600, unencrypted. Raises WalletError when the file exists."""
    _write_new(path, key.hex() + "\n")


def load_key(path: Path) -> bytes:
    """Secret key from a hex file. Raises WalletError for a missing or malformed file, or one that others can read."""
    text = _read(path).strip().removeprefix("0x")
    if text.startswith("{"):
        raise WalletError(f"{path} is an encrypted key store: name the file with its password")
    if path.stat().st_mode & 0o077:
        raise WalletError(f"{path} can be read by others: chmod 600 {path}")
    try:
        key = bytes.fromhex(text)
        address_of(key)
    except (ValueError, WalletError) as error:
        raise WalletError(f"{path} is not a key file: expected 64 hex digits") from error
    return key


def is_encrypted(path: Path) -> bool:
    """Whether the file is a key store rather than plain hex. Raises WalletError when it cannot be read."""
    return _read(path).lstrip().startswith("{")


def load_secret(path: Path, password: Callable[[], str]) -> bytes:
    """Secret key from either kind of file. `password` is called only for an encrypted one. Raises WalletError."""
    return load_keystore(path, password()) if is_encrypted(path) else load_key(path)


def stated_address(path: Path) -> str | None:
    """The address stated in an encrypted key store, read without its password: a label, not a
    proof. None if it states none.

    Raises WalletError for a file that is not a key store.
    """
    try:
        text = json.loads(_read(path)).get("address")
    except (ValueError, AttributeError, RecursionError) as error:
        raise WalletError(f"{path} is no key store") from error
    try:
        return checked_address("0x" + str(text).removeprefix("0x")) if text else None
    except WalletError:
        return None


def _check_cost(held: Json) -> None:
    """Refuse parameters that cost more memory or time than any real key store. Raises ValueError."""
    crypto: Json = held.get("crypto") or held["Crypto"]
    numbers: Json = crypto["kdfparams"]
    memory = 128 * int(numbers.get("n", 0)) * int(numbers.get("r", 0)) * max(1, int(numbers.get("p", 1)))
    if memory > MAX_SCRYPT_MEMORY or int(numbers.get("c", 0)) > MAX_ROUNDS or int(numbers.get("dklen", 32)) > 64:
        raise ValueError("its key derivation is too costly")


def _write_new(path: Path, text: str) -> None:
    """Create the file durably. Once this returns, it is safe to publish the key's
    address and receive payments on it."""
    try:
        write_new(path, text.encode())
    except FileExistsError as error:
        raise WalletError(f"{path} exists already; remove it first if you really mean to lose that key") from error
    except OSError as error:
        raise WalletError(f"cannot create {path}: {error.strerror}") from error


def _read(path: Path) -> str:
    try:
        with path.open() as file:
            return file.read(MAX_KEY_FILE)
    except OSError as error:
        raise WalletError(f"cannot read the key file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WalletError(f"{path} is not a key file: expected 64 hex digits") from error
