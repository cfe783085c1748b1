"""What the development chain refuses of a transaction."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account import Account

from ledger.evm import CHAIN_ID, Refused
from ledger.wallet import address_of, new_key
from tests.contract.harness import ADDRESSES, TRAINER, Registry


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
