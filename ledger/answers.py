"""Checks an end-point's response before anything is read from it. Pure.

An end-point may return anything: None, text, a negative number, another block than the one requested. A response that
does not fit the request raises LedgerUnavailable, so that it decides nothing and another end-point is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ledger.errors import LedgerUnavailable
from ledger.records import Block

PLACE_BITS = 63
"""Limit for block numbers, times, nonces and gas. No chain comes near it, and a larger value is a lie
that would cost work to follow."""
FEE_BITS = 128
QUANTITY = re.compile(r"0x[0-9a-f]{1,64}")
DIGEST = re.compile(r"0x[0-9a-f]{64}")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
DATA = re.compile(r"0x(?:[0-9a-fA-F]{2})*+")
"""Possessive quantifier: otherwise each byte is a backtracking point of about sixty bytes, and a
response may have many millions."""
MAX_TOPICS = 4
SHOWN = 40

Receipt = Mapping[str, Any]


def quantity(answer: object, *, bits: int = 256) -> int:
    """A number below 2^`bits` in JSON-RPC form: "0x5" gives 5. Raises
    LedgerUnavailable, e.g. for "-0x5", "0x" or None."""
    value = int(answer, 16) if isinstance(answer, str) and QUANTITY.fullmatch(answer) else None
    if value is None or value >> bits:
        raise _malformed("a number", answer)
    return value


def place(answer: object) -> int:
    """A block number, time, nonce or gas amount. Raises LedgerUnavailable."""
    return quantity(answer, bits=PLACE_BITS)


def fee(answer: object) -> int:
    """Wei per gas. Raises LedgerUnavailable."""
    return quantity(answer, bits=FEE_BITS)


def parse_block(answer: object) -> Block:
    """A block. Raises LedgerUnavailable."""
    fields = _fields(answer, "a block")
    return Block(place(fields.get("number")), _digest(fields.get("hash"))[2:], place(fields.get("timestamp")))


def base_fee(answer: object) -> int:
    """The base fee in wei per gas, which a block burns. Raises LedgerUnavailable."""
    return fee(_fields(answer, "a block").get("baseFeePerGas"))


def parse_receipt(answer: object, digest: str) -> Receipt | None:
    """The receipt of transaction `digest` (`0x..`); None while it is not in a block. Raises LedgerUnavailable."""
    if answer is None:
        return None
    fields = _fields(answer, "a receipt")
    if _digest(fields.get("transactionHash")) != digest:
        raise LedgerUnavailable("the RPC end-point answered with another transaction's receipt")
    if fields.get("blockNumber") is None:
        return None
    place(fields["blockNumber"])
    place(fields.get("gasUsed"))
    _digest(fields.get("blockHash"))
    quantity(fields.get("status"), bits=1)
    if fields.get("contractAddress") is not None:
        deployed_at(fields)
    return fields


def is_success(receipt: Receipt) -> bool:
    """Whether a transaction succeeded."""
    return quantity(receipt["status"], bits=1) == 1


def deployed_at(receipt: Receipt) -> str:
    """Address of the contract that a deployment created. Raises LedgerUnavailable."""
    return _text(ADDRESS, receipt.get("contractAddress"), "an address")


def check_logs(answer: object, query: object) -> None:
    """Check that these are logs of the blocks that the query names. Raises LedgerUnavailable."""
    asked = _fields(query, "a query")
    first, last = place(asked.get("fromBlock")), place(asked.get("toBlock"))
    if not isinstance(answer, list):
        raise _malformed("logs", answer)
    for each in answer:
        fields = _fields(each, "a log")
        if not first <= place(fields.get("blockNumber")) <= last:
            raise LedgerUnavailable("the RPC end-point answered with logs of other blocks")
        place(fields.get("logIndex"))
        _text(DATA, fields.get("data"), "a log's data")
        topics = fields.get("topics")
        if not isinstance(topics, list) or len(topics) > MAX_TOPICS:
            raise _malformed("a log's topics", topics)
        for topic in topics:
            _digest(topic)


def check_answer(method: str, parameters: Sequence[object], answer: object) -> None:
    """Check that the response fits this request. Raises LedgerUnavailable."""
    if method in CHECKS:
        CHECKS[method](answer, *parameters)


def _check_block_at(answer: object, tag: object, *_: object) -> None:
    if tag == "latest":
        parse_block(answer)
        base_fee(answer)
    elif answer is not None and parse_block(answer).number != place(tag):
        raise LedgerUnavailable("the RPC end-point answered with another block")


def _check_block_of(answer: object, digest: str, *_: object) -> None:
    if answer is not None and parse_block(answer).hash != digest[2:]:
        raise LedgerUnavailable("the RPC end-point answered with another block")


def _check_data(answer: object, *_: object) -> None:
    _text(DATA, answer, "bytes")


CHECKS: Mapping[str, Callable[..., object]] = {
    "eth_blockNumber": place,
    "eth_call": _check_data,
    "eth_chainId": quantity,
    "eth_estimateGas": lambda answer, *_: place(answer),
    "eth_gasPrice": fee,
    "eth_getBalance": lambda answer, *_: quantity(answer),
    "eth_getBlockByHash": _check_block_of,
    "eth_getBlockByNumber": _check_block_at,
    "eth_getCode": _check_data,
    "eth_getLogs": check_logs,
    "eth_getTransactionCount": lambda answer, *_: place(answer),
    "eth_getTransactionReceipt": parse_receipt,
    "eth_maxPriorityFeePerGas": fee,
    "eth_sendRawTransaction": lambda answer, *_: _digest(answer),
}
"""The check for each method's response. Called with the response and the request's parameters."""


def _fields(answer: object, wanted: str) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise _malformed(wanted, answer)
    return answer


def _digest(answer: object) -> str:
    return _text(DIGEST, answer, "a hash")


def _text(pattern: re.Pattern[str], answer: object, wanted: str) -> str:
    if not isinstance(answer, str) or not pattern.fullmatch(answer):
        raise _malformed(wanted, answer)
    return answer


def _malformed(wanted: str, answer: object) -> LedgerUnavailable:
    return LedgerUnavailable(f"the RPC end-point answered {_shown(answer)} where {wanted} belongs")


def _shown(answer: object) -> str:
    """A short rendering of a response, which may be megabytes long and nested."""
    return (
        repr(answer[:SHOWN]) if isinstance(answer, str) else str(answer)[:SHOWN] if _is_plain(answer) else "other JSON"
    )


def _is_plain(answer: object) -> bool:
    return answer is None or isinstance(answer, bool | float) or (isinstance(answer, int) and answer.bit_length() < 128)
