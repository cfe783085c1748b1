"""Key files, their modes and the data folder: everything on disk that belongs to the node.
Nothing is created or changed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dht.errors import NodeError
from dht.identity import NodeKey
from ledger.errors import LedgerError
from ledger.wallet import address_of
from node.config import NodeConfig
from node.doctor.finding import Finding, State, fault, ok, skipped, warning
from node.registration import read_wallet
from node.secrets import OPERATOR_PASSWORD, read_secret

SIGNERS = ("trainer", "validator")
"""Roles that pay gas themselves."""


def check_folder(config: NodeConfig) -> Finding:
    """The data folder exists or can be created, and is writable."""
    home = config.home
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    if not place.is_dir():
        return fault("data folder", f"{place} is a file, not a folder", "move it away, or name another folder: --data")
    try:
        with tempfile.TemporaryFile(
            dir=place
        ):  # the file never gets a name; this is tried because modes do not show where nothing can be created (/proc)
            pass
    except OSError:
        return fault("data folder", f"{place} cannot be written", f"chown it to {os.getuid()}, or name another: --data")
    return ok("data folder", f"{home}{'' if home.exists() else ', made at the first start'}")


def check_node_key(config: NodeConfig) -> Finding:
    """The node's key file, if there is one already."""
    if config.key is None and not config.key_path.exists():
        if check_folder(config).state is State.FAULT:
            return skipped("node key", "none yet; the data folder comes first")
        return ok("node key", f"none yet; made at the first start in {config.key_path}")
    return _check_key("node key", config.key_path, lambda path: f"node {NodeKey.load(path).node}")


def own_node(config: NodeConfig) -> str | None:
    """The id that the node will have, if its key can be read."""
    try:
        return NodeKey.load(config.key_path).node
    except NodeError:
        return None


def check_operator_key(config: NodeConfig) -> Finding:
    """The key that pays gas: needed by trainers and validators."""
    if config.operator_key is None:
        if config.role in SIGNERS or config.sponsor:
            who = f"a {config.role}" if config.role in SIGNERS else "a sponsor"
            return fault(
                "operator key",
                f"{who} signs and pays on the ledger, and no key is named",
                "intellect-node keys new --operator operator.key; then --operator-key operator.key",
            )
        return skipped("operator key", f"a {config.role} needs none")
    return _check_key(
        "operator key",
        config.operator_key.expanduser(),
        lambda path: f"address {address_of(read_secret(path, config.operator_password_file, OPERATOR_PASSWORD))}",
    )


def check_wallet(config: NodeConfig) -> Finding:
    """The wallet that the work is credited to."""
    if not config.wallet:
        if config.role in SIGNERS:
            return skipped("wallet", f"a {config.role} needs none: the run's spec names whom it pays")
        return warning(
            "wallet",
            "no wallet: the work is credited to nobody but the node",
            "name an address or a key file: --wallet",
        )
    try:
        wallet = read_wallet(config)
    except (NodeError, LedgerError) as error:
        return fault("wallet", *_with_fix(str(error), "name an address (0x and 40 hex digits) or a key file: --wallet"))
    if wallet.key is None:
        return ok("wallet", f"{wallet.address}, claimed: credited once its owner signs")
    return _warn_of_mode("wallet", Path(config.wallet).expanduser()) or ok(
        "wallet", f"{wallet.address}, linked by its key"
    )


def _check_key(check: str, path: Path, load: Callable[[Path], str]) -> Finding:
    try:
        said = load(path)
    except (NodeError, LedgerError) as error:
        return fault(check, *_with_fix(str(error), "restore the file from your copy; a new key is a new identity"))
    return _warn_of_mode(check, path) or ok(check, f"{said} ({path})")


def _with_fix(said: str, fix: str) -> tuple[str, str]:
    """Split an error message into the problem and the remedy after its colon; without one, use the fix given."""
    cause, _, remedy = said.partition(": chmod ")
    return (cause, f"chmod {remedy}") if remedy else (said, fix)


def _warn_of_mode(check: str, path: Path) -> Finding | None:
    """Warn of a key that others can read, or that somebody else owns (KEY-07)."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return warning(check, f"{path} can be read by others (mode {mode:04o})", f"chmod 400 {path}")
    if found.st_uid != os.getuid():
        return warning(check, f"{path} belongs to user {found.st_uid}", f"chown {os.getuid()} {path}")
    return None


def examine_keys(config: NodeConfig) -> Iterator[Finding]:
    """Every check of this module."""
    yield check_folder(config)
    yield check_node_key(config)
    yield check_operator_key(config)
    yield check_wallet(config)
