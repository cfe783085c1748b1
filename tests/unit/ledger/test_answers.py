"""Which numbers, blocks and receipts are valid responses."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from ledger.answers import base_fee, check_answer, deployed_at, is_success, parse_block, parse_receipt, quantity
from ledger.errors import LedgerUnavailable
from ledger.records import Block
from tests.unit.ledger.test_rpc import HASH, NO_NUMBERS, RECEIPT, block


@pytest.mark.parametrize(("answer", "value"), [("0x0", 0), ("0x5", 5), ("0x05", 5), ("0x" + "f" * 64, 2**256 - 1)])
def test_quantity__hex_digits(answer: str, value: int) -> None:
    assert quantity(answer) == value


@pytest.mark.parametrize("lie", NO_NUMBERS)
def test_quantity__nothing_else(lie: Any) -> None:
    with pytest.raises(LedgerUnavailable, match="where a number belongs"):
        quantity(lie)


def test_quantity__no_larger_than_can_be() -> None:
    assert quantity(hex(2**63 - 1), bits=63) == 2**63 - 1
    with pytest.raises(LedgerUnavailable):
        quantity(hex(2**63), bits=63)


def test_quantity__says_what_was_answered_in_few_letters() -> None:
    with pytest.raises(LedgerUnavailable) as fault:
        quantity("0x" + "f" * 10**6)
    assert "0xfff" in str(fault.value)
    assert len(str(fault.value)) < 200


def test_parse_block__number_hash_and_time() -> None:
    assert parse_block(block(5, timestamp="0x10")) == Block(5, HASH[2:], 16)
    assert base_fee(block()) == 7


def test_parse_receipt__none_while_in_no_block() -> None:
    assert parse_receipt(None, HASH) is None
    assert parse_receipt({"transactionHash": HASH, "blockNumber": None}, HASH) is None
    held = parse_receipt(RECEIPT, HASH)
    assert held == RECEIPT
    assert is_success(held)
    with pytest.raises(LedgerUnavailable, match="an address"):
        deployed_at(held)


@pytest.mark.parametrize("lie", ["", "0x0", "0xgg", "ab", None, "0xab\n"])
def test_check_answer__bytes_that_are_none(lie: Any) -> None:
    with pytest.raises(LedgerUnavailable, match="where bytes belongs"):
        check_answer("eth_call", (), lie)


def test_check_answer__long_bytes_cost_no_memory() -> None:
    tracemalloc.start()
    try:
        check_answer("eth_call", (), "0x" + "ab" * 2**20)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
