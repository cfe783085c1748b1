"""Keys and signatures: wallets and operators (secp256k1), nodes (ed25519, verified only), and what each signs.

Wallets sign EIP-712 typed data, so that a user's own wallet software shows what is signed. Node keys sign
length-prefixed bytes; this module never sees their secret half. ERC-1271 contract wallets are not supported.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import base58
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.address import is_checksum_address, is_hex_address, to_checksum_address
from nacl.exceptions import BadSignatureError
from nacl.exceptions import ValueError as BadLengthError
from nacl.signing import VerifyKey

from ledger.errors import WalletError
from ledger.records import Proposal, RegistrationRequest
from ledger.recursion import restore_recursion_limit

restore_recursion_limit()

NO_ADDRESS = "0x" + "0" * 40
PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Prefix of a 36-byte identity multihash: a libp2p protobuf key of type Ed25519 with 32 bytes."""
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
DOMAIN_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]
REGISTRATION_FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "node", "type": "bytes32"},
    {"name": "wallet", "type": "address"},
    {"name": "nonce", "type": "uint256"},
]
TALLY_FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "epoch", "type": "uint256"},
    {"name": "round", "type": "uint256"},
    {"name": "closingBlock", "type": "uint256"},
    {"name": "parentRoot", "type": "bytes32"},
    {"name": "root", "type": "bytes32"},
    {"name": "units", "type": "uint256"},
    {"name": "amount", "type": "uint256"},
    {"name": "blob", "type": "bytes32"},
]


@dataclass(frozen=True, slots=True)
class Domain:
    """What a signature is bound to: one contract on one chain."""

    chain_id: int
    contract: str


def node_from_public_key(public_key: bytes) -> str:
    """Peer id (`12D3KooW..`) of a 32-byte ed25519 public key."""
    if len(public_key) != 32:
        raise WalletError("an ed25519 public key has 32 bytes")
    return str(base58.b58encode(PEER_ID_PREFIX + public_key).decode())


def public_key_from_node(node: str) -> bytes:
    """The 32-byte ed25519 public key in a peer id. Raises WalletError for any other text."""
    try:
        raw = base58.b58decode(node) if len(node) <= 64 else b""
    except ValueError as error:
        raise WalletError(f"not a node id: {node[:64]!r}") from error
    if len(raw) != 38 or not raw.startswith(PEER_ID_PREFIX):
        raise WalletError(f"not an ed25519 node id: {node[:64]!r}")
    return raw[len(PEER_ID_PREFIX) :]


def checked_address(text: str) -> str:
    """The EIP-55 form of an address. Raises WalletError for a malformed or zero address, or a wrong checksum."""
    if not text.startswith("0x") or not is_hex_address(text) or int(text, 16) == 0:
        raise WalletError(f"not a wallet address: {text[:64]!r} (expected 0x and 40 hex digits)")
    mixed = text[2:] not in (text[2:].lower(), text[2:].upper())
    if mixed and not is_checksum_address(text):
        raise WalletError(f"the address {text} fails its checksum: a digit or the case is wrong")
    return str(to_checksum_address(text))


def new_key() -> bytes:
    """A fresh secp256k1 secret key."""
    return bytes(Account.create(secrets.token_hex(32)).key)


def address_of(key: bytes) -> str:
    """Address of a secret key. Raises WalletError when the 32 bytes are not one."""
    try:
        return str(Account.from_key(key).address)
    except Exception as error:  # eth-keys and coincurve raise different classes
        raise WalletError("not a secp256k1 secret key") from error


def registration_message(
    domain: Domain, *, run: str, node: str, wallet: str | None, claimed: str | None, nonce: int
) -> bytes:
    """The bytes that a node key signs to register: every field, length-prefixed, under `registration/1`."""
    fields = (
        b"registration/1",
        domain.chain_id.to_bytes(32, "big"),
        bytes.fromhex(domain.contract[2:]),
        bytes.fromhex(run),
        public_key_from_node(node),
        bytes.fromhex((wallet or NO_ADDRESS)[2:]),
        bytes.fromhex((claimed or NO_ADDRESS)[2:]),
        nonce.to_bytes(32, "big"),
    )
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def check_node_signature(node: str, message: bytes, signature: str) -> bool:
    """Whether `signature` (hex) over `message` is by the node's key."""
    try:
        VerifyKey(public_key_from_node(node)).verify(message, bytes.fromhex(signature))
    except (BadSignatureError, BadLengthError, ValueError, WalletError):
        return False
    return True


def registration_typed_data(domain: Domain, *, run: str, node: str, wallet: str, nonce: int) -> dict[str, Any]:
    """EIP-712 message that a wallet signs to be linked to a node; JSON-ready for any wallet software."""
    message: dict[str, Any] = {
        "run": "0x" + run,
        "node": "0x" + public_key_from_node(node).hex(),
        "wallet": wallet,
        "nonce": nonce,
    }
    return typed_data(domain, "Registration", REGISTRATION_FIELDS, message)


def tally_typed_data(domain: Domain, proposal: Proposal) -> dict[str, Any]:
    """EIP-712 message that a validator operator signs to attest a tally."""
    message: dict[str, Any] = {
        "run": "0x" + proposal.run,
        "epoch": proposal.epoch,
        "round": proposal.round,
        "closingBlock": proposal.closing_block,
        "parentRoot": "0x" + proposal.parent_root,
        "root": "0x" + proposal.root,
        "units": proposal.total,
        "amount": proposal.amount,
        "blob": "0x" + proposal.blob,
    }
    return typed_data(domain, "Tally", TALLY_FIELDS, message)


def is_ours(data: object) -> bool:
    """Whether this has the form of an EIP-712 message of this network, so that our wallet program may sign it."""
    if not isinstance(data, dict) or set(data) != {"types", "primaryType", "domain", "message"}:
        return False
    domain, types = data["domain"], data["types"]
    if not isinstance(domain, dict) or not isinstance(types, dict) or not isinstance(data["message"], dict):
        return False
    is_domain = (domain.get("name"), domain.get("version")) == ("intellect-node", "1")
    return (
        is_domain and types.get("EIP712Domain") == DOMAIN_FIELDS and data["primaryType"] in ("Registration", "Rotation")
    )


def sign_typed_data(typed_data: dict[str, Any], key: bytes) -> str:
    """65-byte signature (hex) of an EIP-712 message."""
    signed = Account.sign_message(encode_typed_data(full_message=typed_data), key)
    return bytes(signed.signature).hex()


def recover_typed_data(typed_data: dict[str, Any], signature: str) -> str | None:
    """Address that signed an EIP-712 message; None for a malformed or non-canonical signature, as on chain."""
    try:
        raw = bytes.fromhex(signature)
        if len(raw) != 65 or raw[64] not in (27, 28) or int.from_bytes(raw[32:64], "big") > HALF_ORDER:
            return None
        return str(Account.recover_message(encode_typed_data(full_message=typed_data), signature=raw))
    except Exception:  # eth-keys and coincurve raise different classes for an impossible point
        return None


def canonical_signature(text: str) -> str:
    """A wallet's 65-byte signature (hex) in the one form that the contract accepts: v 27 or 28, s in the lower half.

    Some devices give v as 0 or 1. Raises WalletError for anything that is not a signature.
    """
    try:
        raw = bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 65 or raw[64] not in (0, 1, 27, 28):
        raise WalletError("not a signature: expected 65 bytes, 0x and 130 hex digits")
    r, s, v = raw[:32], int.from_bytes(raw[32:64], "big"), raw[64] % 27
    if s > HALF_ORDER:
        s, v = ORDER - s, 1 - v
    return (r + (s % ORDER).to_bytes(32, "big") + bytes([27 + v])).hex()


def sign_registration(
    domain: Domain,
    *,
    run: str,
    node: str,
    nonce: int,
    sign_node: Callable[[bytes], bytes],
    wallet_key: bytes | None = None,
    claimed: str | None = None,
) -> RegistrationRequest:
    """A registration ready to send: linked when the wallet's key is given, otherwise unlinked or merely `claimed`.

    `sign_node` makes the node key's 64-byte ed25519 signature. Raises WalletError for a malformed address.
    """
    wallet = address_of(wallet_key) if wallet_key else None
    claimed = checked_address(claimed) if claimed and not wallet else None
    message = registration_message(domain, run=run, node=node, wallet=wallet, claimed=claimed, nonce=nonce)
    signature = ""
    if wallet and wallet_key:
        typed = registration_typed_data(domain, run=run, node=node, wallet=wallet, nonce=nonce)
        signature = sign_typed_data(typed, wallet_key)
    return RegistrationRequest(run, node, wallet, claimed, nonce, signature, sign_node(message).hex())


def typed_data(domain: Domain, kind: str, fields: list[dict[str, str]], message: dict[str, Any]) -> dict[str, Any]:
    """A complete EIP-712 message of this network, JSON-ready."""
    return {
        "types": {"EIP712Domain": DOMAIN_FIELDS, kind: fields},
        "primaryType": kind,
        "domain": {
            "name": "intellect-node",
            "version": "1",
            "chainId": domain.chain_id,
            "verifyingContract": domain.contract,
        },
        "message": message,
    }
