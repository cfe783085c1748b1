"""When a node registers again, and how a wallet is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from ledger.errors import LedgerRejected, WalletError
from ledger.keystore import save_key
from ledger.records import Registration
from ledger.wallet import address_of
from node.config import NodeConfig
from node.errors import ConfigError, UsageError
from node.registration import Registrar, Wallet, named_address, needs_registration, read_wallet
from tests.builders import STRANGER, make_spec

KEY = bytes(31) + b"\x01"
MINE = address_of(KEY)
OTHER = address_of(bytes(31) + b"\x02")
SPEC = make_spec()


def held(*, wallet: str | None = None, claimed: str | None = None) -> Registration:
    return Registration("12D3KooW", wallet, claimed, nonce=1, first_block=1, block=1)


@pytest.mark.parametrize(
    ("registration", "wallet", "needed"),
    [
        (None, Wallet(), True),
        (held(), Wallet(), False),
        (held(wallet=OTHER), Wallet(), False),  # no wallet named: whatever stands is fine
        (held(wallet=MINE), Wallet(KEY, MINE), False),
        (held(wallet=OTHER), Wallet(KEY, MINE), True),
        (held(claimed=MINE), Wallet(KEY, MINE), True),  # the key is here now: link
        (held(wallet=MINE), Wallet(address=MINE), False),  # linked already: naming the address must not unlink
        (held(claimed=OTHER), Wallet(address=MINE), True),
    ],
)
def test_needs_registration(registration: Registration | None, wallet: Wallet, needed: bool) -> None:
    assert needs_registration(registration, wallet) is needed


class Paused:
    """A ledger that accepts no registration."""

    async def registration(self, node: str) -> Registration | None:
        raise LedgerRejected("run is paused", was_paid=False)


@pytest.mark.parametrize("role", ["validator", "trainer"])
async def test_run__who_judges_or_trains_is_not_registered__appointed_since_or_not(role: str) -> None:
    """It would cost gas, and a ledger that refuses it would end the node."""
    assert STRANGER.node not in {item.node for item in SPEC.validators}
    parts: dict[str, Any] = {"spec": SPEC, "key": STRANGER, "wallet": Wallet(), "ledger": Paused(), "relays": None}
    await Registrar(role=role, **parts).run()
    with pytest.raises(LedgerRejected):
        await Registrar(role="worker", **parts).run()


def config(wallet: str, password_file: Path | None = None) -> NodeConfig:
    return NodeConfig(role="worker", wallet=wallet, wallet_password_file=password_file)


def test_read_wallet__address() -> None:
    assert read_wallet(config(MINE.lower())) == Wallet(address=MINE)


def test_read_wallet__key_file(tmp_path: Path) -> None:
    save_key(tmp_path / "wallet.key", KEY)
    assert read_wallet(config(str(tmp_path / "wallet.key"))) == Wallet(KEY, MINE)


def test_read_wallet__key_file_others_can_read(tmp_path: Path) -> None:
    save_key(tmp_path / "wallet.key", KEY)
    (tmp_path / "wallet.key").chmod(0o644)
    with pytest.raises(WalletError, match="chmod 600"):
        read_wallet(config(str(tmp_path / "wallet.key")))


def test_read_wallet__encrypted_needs_its_password(tmp_path: Path) -> None:
    few_rounds = Account.encrypt(KEY, "correct", kdf="pbkdf2", iterations=10)
    (tmp_path / "wallet.json").write_text(json.dumps(few_rounds))
    with pytest.raises(ConfigError, match="--wallet-password-file"):
        read_wallet(config(str(tmp_path / "wallet.json")))
    (tmp_path / "password").write_text("correct\n")
    assert read_wallet(config(str(tmp_path / "wallet.json"), tmp_path / "password")).address == MINE


def test_named_address__of_a_wallet_by_address_or_file_without_its_password(tmp_path: Path) -> None:
    save_key(tmp_path / "plain.key", KEY)
    few_rounds = Account.encrypt(KEY, "correct", kdf="pbkdf2", iterations=10)
    (tmp_path / "wallet.json").write_text(json.dumps(few_rounds))
    names = [MINE.lower(), str(tmp_path / "plain.key"), str(tmp_path / "wallet.json")]
    assert [named_address(name) for name in names] == [MINE] * 3


@pytest.mark.parametrize("wrong", ["wallet.json", "0x12", MINE + "0"])
def test_named_address__neither(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"neither an address .* nor a file"):
        named_address(wrong)


def test_named_address__key_store_that_does_not_say_it(tmp_path: Path) -> None:
    silent = dict(Account.encrypt(KEY, "correct", iterations=10, kdf="pbkdf2"))
    del silent["address"]
    (tmp_path / "wallet.json").write_text(json.dumps(silent))
    with pytest.raises(UsageError, match="name the address itself"):
        named_address(str(tmp_path / "wallet.json"))
