"""What is signed beside registrations and tallies: rotations of node keys, strikes, and the lifting of strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.records import RotationRequest, Strike
from ledger.wallet import NO_ADDRESS, Domain, address_of, public_key_from_node, sign_typed_data, typed_data

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
    """What node keys sign to put one in the place of another: every field, length-prefixed, under `rotation/1`."""
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
    """EIP-712 message a wallet signs to give a node of its another key."""
    message: dict[str, Any] = {
        "run": "0x" + run,
        "oldNode": "0x" + public_key_from_node(old_node).hex(),
        "newNode": "0x" + public_key_from_node(new_node).hex(),
        "wallet": wallet,
        "nonce": nonce,
    }
    return typed_data(domain, "Rotation", ROTATION_FIELDS, message)


def strike_typed_data(domain: Domain, strike: Strike) -> dict[str, Any]:
    """EIP-712 message a validator operator signs to eject a node."""
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
    """EIP-712 message a validator operator signs to take a strike back."""
    message: dict[str, Any] = {
        "run": "0x" + run,
        "node": "0x" + public_key_from_node(node).hex(),
        "number": number,
    }
    return typed_data(domain, "Lift", LIFT_FIELDS, message)


def sign_rotation(
    domain: Domain,
    *,
    run: str,
    old_node: str,
    new_node: str,
    nonce: int,
    sign_new: Callable[[bytes], bytes],
    sign_old: Callable[[bytes], bytes] | None = None,
    wallet_key: bytes | None = None,
) -> RotationRequest:
    """A rotation ready to send, by the wallet's key or else by the old node key.

    `sign_new` and `sign_old` make ed25519 signatures of 64 bytes. Raises ValueError without either authority.
    """
    wallet = address_of(wallet_key) if wallet_key else None
    message = rotation_message(domain, run=run, old_node=old_node, new_node=new_node, wallet=wallet, nonce=nonce)
    by_wallet = by_old = ""
    if wallet and wallet_key:
        typed = rotation_typed_data(domain, run=run, old_node=old_node, new_node=new_node, wallet=wallet, nonce=nonce)
        by_wallet = sign_typed_data(typed, wallet_key)
    elif sign_old is not None:
        by_old = sign_old(message).hex()
    else:
        raise ValueError("a rotation is signed by the wallet or by the old key")
    return RotationRequest(run, old_node, new_node, wallet, nonce, by_wallet, by_old, sign_new(message).hex())
