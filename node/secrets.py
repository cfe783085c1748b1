"""Keys named in settings and commands, and the sources of their passwords: file, environment, prompt.

Never an argument, because arguments appear in the shell's history and in the list of processes.
"""

from __future__ import annotations

import functools
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.keystore import MIN_PASSWORD, load_secret
from ledger.wallet import address_of
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.config import NodeConfig

WALLET_PASSWORD = "INTELLECT_WALLET_PASSWORD"  # noqa: S105 - a variable's name
OPERATOR_PASSWORD = "INTELLECT_OPERATOR_PASSWORD"  # noqa: S105 - a variable's name
NODE_KEY_PASSWORD = "INTELLECT_KEY_PASSWORD"  # noqa: S105 - a variable's name
FLAGS = {
    NODE_KEY_PASSWORD: "--password-file",
    WALLET_PASSWORD: "--wallet-password-file",
    OPERATOR_PASSWORD: "--operator-password-file",
}
MAX_PASSWORD = 1024


def read_secret(path: Path, password_file: Path | None = None, variable: str = WALLET_PASSWORD) -> bytes:
    """The secret key in a plain or encrypted file, decrypted once per process. Raises WalletError, ConfigError."""
    try:
        found = path.stat()
    except OSError:  # reported below, with its cause
        return load_secret(path, str)
    return _read_once(path, password_file, variable, (found.st_mtime_ns, found.st_mode))


@functools.cache
def _read_once(path: Path, password_file: Path | None, variable: str, _: tuple[int, int]) -> bytes:
    return load_secret(path, lambda: known_password(path, password_file, variable))


def read_operator_key(config: NodeConfig) -> bytes | None:
    """The key that pays gas, if the settings name one. Raises WalletError, ConfigError."""
    if config.operator_key is None:
        return None
    return read_secret(config.operator_key.expanduser(), config.operator_password_file, OPERATOR_PASSWORD)


def known_password(path: Path, password_file: Path | None, variable: str) -> str:
    """Password of an existing key store. Raises ConfigError when it has no source."""
    given = _given(password_file, variable)
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{path} is encrypted, and without a terminal nobody can be asked: name the file with its password "
            f"({FLAGS[variable]}), or set {variable}"
        )
    return getpass.getpass(f"password of {path}: ")


def ask_secret_key() -> bytes:
    """A secret key in hex, typed or piped in. Raises WalletError for anything else."""
    text = getpass.getpass("secret key (64 hex digits): ") if sys.stdin.isatty() else sys.stdin.readline(MAX_PASSWORD)
    try:
        key = bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        key = b""
    address_of(key)
    return key


def new_password(path: Path, password_file: Path | None, variable: str = WALLET_PASSWORD) -> str:
    """Password for a new key store, asked for twice. Raises ConfigError for a short one or two that differ."""
    password = _given(password_file, variable)
    if password is None:
        if not sys.stdin.isatty():
            raise ConfigError(f"a password for {path} is needed: {FLAGS[variable]} FILE, or the variable {variable}")
        password = getpass.getpass(f"new password for {path}: ")
        if getpass.getpass("once more: ") != password:
            raise ConfigError("the two passwords differ; nothing was written")
    if len(password) < MIN_PASSWORD:
        raise ConfigError(f"a password has at least {MIN_PASSWORD} characters; nothing was written")
    return password


def _given(password_file: Path | None, variable: str) -> str | None:
    if password_file is None:
        return os.environ.get(variable)
    try:
        with password_file.expanduser().open() as file:
            return file.read(MAX_PASSWORD).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"cannot read the password file {password_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the password file {password_file} holds no text, so no password") from error
