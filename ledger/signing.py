"""Signed messages other than registrations and tallies: rotations of node keys, strikes, and the lifting of strikes."""

from __future__ import annotations

from typing import Any

from ledger.records import Strike
from ledger.wallet import NO_ADDRESS, Domain, public_key_from_node, typed_data

ROTATION_FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "oldNode", "type": "bytes32"},
    {"name": "newNode", "type": "bytes32"},
    {"name": "wallet", "type": "address"},
    {"name": "nonce", "type": "uint256"},
]
STRIKE_FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "node", "type": "bytes32"},
    {"name": "wallet", "type": "address"},
    {"name": "number", "type": "uint256"},
    {"name": "reason", "type": "uint256"},
    {"name": "evidence", "type": "bytes32"},
]
LIFT_FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "node", "type": "bytes32"},
    {"name": "number", "type": "uint256"},
]


def rotation_message(
    domain: Domain, *, run: str, old_node: str, new_node: str, wallet: str | None, nonce: int
) -> bytes:
    """The bytes that node keys sign to replace one by another: every field, length-prefixed, under `rotation/1`."""
    fields = (
        b"rotation/1",
        domain.chain_id.to_bytes(32, "big"),
        bytes.fromhex(domain.contract[2:]),
        bytes.fromhex(run),
        public_key_from_node(old_node),
        public_key_from_node(new_node),
        bytes.fromhex((wallet or NO_ADDRESS)[2:]),
        nonce.to_bytes(32, "big"),
    )
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def rotation_typed_data(
    domain: Domain, *, run: str, old_node: str, new_node: str, wallet: str, nonce: int
) -> dict[str, Any]:
    """EIP-712 message that a wallet signs to give its node another key."""
    message: dict[str, Any] = {
        "run": "0x" + run,
        "oldNode": "0x" + public_key_from_node(old_node).hex(),
        "newNode": "0x" + public_key_from_node(new_node).hex(),
        "wallet": wallet,
        "nonce": nonce,
    }
    return typed_data(domain, "Rotation", ROTATION_FIELDS, message)


def strike_typed_data(domain: Domain, strike: Strike) -> dict[str, Any]:
    """EIP-712 message that a validator operator signs to eject a node."""
    message: dict[str, Any] = {
        "run": "0x" + strike.run,
        "node": "0x" + public_key_from_node(strike.node).hex(),
        "wallet": strike.wallet or NO_ADDRESS,
        "number": strike.number,
        "reason": strike.reason,
        "evidence": "0x" + strike.evidence,
    }
    return typed_data(domain, "Strike", STRIKE_FIELDS, message)


def lift_typed_data(domain: Domain, *, run: str, node: str, number: int) -> dict[str, Any]:
    """EIP-712 message that a validator operator signs to lift a strike."""
    message: dict[str, Any] = {
        "run": "0x" + run,
        "node": "0x" + public_key_from_node(node).hex(),
        "number": number,
    }
    return typed_data(domain, "Lift", LIFT_FIELDS, message)
