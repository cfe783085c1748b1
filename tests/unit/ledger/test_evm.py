"""Transactions that the development chain refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from ledger.chain_journal import Genesis
from ledger.evm import CHAIN_ID, DevChain, Refused
from ledger.wallet import address_of, new_key
from tests.contract.harness import ADDRESSES, START, TRAINER, Registry


def sign(key: bytes = TRAINER, **changes: Any) -> bytes:
    transaction = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": 0,
        "gas": 21_000,
        "maxFeePerGas": 10**10,
        "maxPriorityFeePerGas": 1,
        "to": ADDRESSES[1],
        "value": 0,
        "data": "0x",
        **changes,
    }
    return bytes(Account.sign_transaction(transaction, key).raw_transaction)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (sign(chainId=1), "chain id"),
        (sign(nonce=1), "nonce too high"),
        (sign(gas=40_000_000), "exceeds block gas limit"),
        (sign(gas=20_000), "intrinsic gas too low"),
        (sign(maxFeePerGas=1), "base fee"),
        (sign(new_key()), "insufficient funds"),
        (sign()[:-1], "invalid transaction"),
        (b"", "invalid transaction"),
        (b"\x02\xc0", "invalid transaction"),
    ],
)
def test_send__refuses(raw: bytes, reason: str) -> None:
    registry = Registry()
    head = registry.chain.head
    with pytest.raises(Refused, match=reason):
        registry.chain.send(raw)
    assert registry.chain.head == head


def test_send__refuses_a_second_time__nonce() -> None:
    registry = Registry()
    registry.chain.send(sign())
    with pytest.raises(Refused, match="already known"):
        registry.chain.send(sign())
    with pytest.raises(Refused, match="nonce too low"):
        registry.chain.send(sign(value=1))


def test_balance__pays_value_and_gas() -> None:
    registry = Registry()
    before = registry.chain.balance(address_of(TRAINER))
    registry.chain.send(sign(value=5))
    assert registry.chain.balance(ADDRESSES[1]) == before + 5
    assert registry.chain.balance(address_of(TRAINER)) < before - 5


# A contract whose code is 5f5f5f5f5f305af100: call yourself with all the gas there is.
ENDLESS = "0x68" + "5f5f5f5f5f305af100" + "5f5260096017f3"


def test_send__contracts_that_call_each_other_too_deeply(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    chain = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0.0, journal=journal)
    receipt = chain.receipt(chain.send(sign(to="", data=ENDLESS, gas=200_000)))
    assert receipt is not None
    endless = receipt["contractAddress"]
    with pytest.raises(Refused, match="too deeply"):
        chain.call(sender=ADDRESSES[0], to=endless, data=b"")
    with pytest.raises(Refused, match="too deeply"):
        chain.send(sign(nonce=1, to=endless, gas=20_000_000))
    chain.send(sign(nonce=1))
    head = chain.head
    chain.close()
    again = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0.0, journal=journal)
    assert (again.head, again.nonce(ADDRESSES[0])) == (head, 2)
    again.close()
