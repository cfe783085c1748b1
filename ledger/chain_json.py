"""The development chain's blocks, receipts and logs in their JSON-RPC form. Pure."""

from __future__ import annotations

from typing import Any

from eth_utils.address import to_checksum_address

Json = dict[str, Any]


def block_json(header: Any, transaction: Any) -> Json:
    """A block, with its transaction if it has one."""
    return {
        "number": hex(header.block_number),
        "hash": "0x" + header.hash.hex(),
        "parentHash": "0x" + header.parent_hash.hex(),
        "timestamp": hex(header.timestamp),
        "baseFeePerGas": hex(header.base_fee_per_gas),
        "gasLimit": hex(header.gas_limit),
        "gasUsed": hex(header.gas_used),
        "stateRoot": "0x" + header.state_root.hex(),
        "receiptsRoot": "0x" + header.receipt_root.hex(),
        "transactionsRoot": "0x" + header.transaction_root.hex(),
        "logsBloom": "0x" + int(header.bloom).to_bytes(256, "big").hex(),
        "miner": to_checksum_address(header.coinbase),
        "mixHash": "0x" + header.mix_hash.hex(),
        "nonce": "0x" + header.nonce.hex(),
        "difficulty": "0x0",
        "totalDifficulty": "0x0",
        "extraData": "0x",
        "sha3Uncles": "0x" + header.uncles_hash.hex(),
        "size": "0x0",
        "uncles": [],
        "transactions": ["0x" + transaction.hash.hex()] if transaction else [],
    }


def receipt_json(block: Json, transaction: Any, receipt: Any, computation: Any) -> Json:
    """The receipt of a block's transaction, including its logs."""
    place = {
        "blockNumber": block["number"],
        "blockHash": block["hash"],
        "transactionHash": "0x" + transaction.hash.hex(),
        "transactionIndex": "0x0",
    }
    return {
        **place,
        "type": "0x2",
        "from": to_checksum_address(transaction.sender),
        "to": to_checksum_address(transaction.to) if transaction.to else None,
        "contractAddress": None if transaction.to else to_checksum_address(computation.msg.storage_address),
        "status": hex(int(not computation.is_error)),
        "gasUsed": hex(receipt.gas_used),
        "cumulativeGasUsed": hex(receipt.gas_used),
        "effectiveGasPrice": hex(_gas_price(transaction, int(block["baseFeePerGas"], 16))),
        "logs": [{**place, **_log_json(index, log)} for index, log in enumerate(receipt.logs)],
        "logsBloom": block["logsBloom"],
    }


def _gas_price(transaction: Any, base_fee: int) -> int:
    """Wei per gas that a transaction pays."""
    return int(min(transaction.max_fee_per_gas, base_fee + transaction.max_priority_fee_per_gas))


def _log_json(index: int, log: Any) -> Json:
    return {
        "logIndex": hex(index),
        "removed": False,
        "address": to_checksum_address(log.address),
        "topics": ["0x" + topic.to_bytes(32, "big").hex() for topic in log.topics],
        "data": "0x" + log.data.hex(),
    }
