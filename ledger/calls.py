"""Calls of the registry: converts records to the arguments its ABI takes. Pure.

Raises LedgerError (or its subclass WalletError) for an invalid digest, node id or address,
LedgerRejected for a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from ledger.errors import LedgerRejected
from ledger.events import operator_tuples
from ledger.merkle import MerkleProof
from ledger.records import ROLES_BY_NUMBER, Leaf, Proposal, RegistrationRequest, RotationRequest, Strike
from ledger.rules import check_digest
from ledger.wallet import NO_ADDRESS, public_key_from_node

PAYABLE = ("fund", "stake")
"""Calls that transfer coins; their last argument is the amount."""


def registration_arguments(request: RegistrationRequest) -> tuple[object, ...]:
    """Arguments of `register`."""
    return (
        check_digest(request.run),
        public_key_from_node(request.node),
        request.wallet or NO_ADDRESS,
        request.claimed or NO_ADDRESS,
        request.nonce,
        hex_bytes(request.wallet_signature),
        hex_bytes(request.node_signature),
    )


def rotation_arguments(request: RotationRequest) -> tuple[object, ...]:
    """Arguments of `rotate`."""
    return (
        check_digest(request.run),
        public_key_from_node(request.old_node),
        public_key_from_node(request.new_node),
        request.wallet or NO_ADDRESS,
        request.nonce,
        hex_bytes(request.wallet_signature),
        hex_bytes(request.old_node_signature),
        hex_bytes(request.new_node_signature),
    )


def tally_arguments(proposal: Proposal) -> tuple[object, ...]:
    """The struct `Tally`."""
    return (
        check_digest(proposal.run),
        proposal.epoch,
        proposal.round,
        proposal.closing_block,
        check_digest(proposal.parent_root),
        check_digest(proposal.root),
        proposal.total,
        proposal.amount,
        check_digest(proposal.blob),
    )


def strike_arguments(strike: Strike) -> tuple[object, ...]:
    """Arguments of `strike`, without its attestations."""
    return (
        check_digest(strike.run),
        public_key_from_node(strike.node),
        strike.wallet or NO_ADDRESS,
        strike.number,
        strike.reason,
        check_digest(strike.evidence),
    )


def leaf_tuple(leaf: Leaf) -> tuple[int, bytes, str, int, int]:
    """The struct `Leaf`."""
    role = ROLES_BY_NUMBER.index(leaf.role)
    return (role, public_key_from_node(leaf.node), leaf.wallet or NO_ADDRESS, leaf.units, leaf.amount)


def arguments_of(name: str, arguments: Sequence[object]) -> tuple[object, ...]:
    """Convert the arguments that `BaseLedger` passes to any other call. They follow the run id."""
    return CALLS[name](*arguments)


def hex_bytes(text: str) -> bytes:
    """Bytes of a signature in hex. Raises LedgerRejected."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise LedgerRejected("signature") from error


def encode_token_call(name: str, *arguments: object) -> str:
    """Call data (`0x..`) of an ERC-20: `allowance(owner, spender)`, `approve(spender, amount)`, `balanceOf(owner)`."""
    types = TOKEN_CALLS[name]
    return "0x" + (keccak(text=f"{name}({','.join(types)})")[:4] + encode(types, arguments)).hex()


TOKEN_CALLS = {
    "allowance": ("address", "address"),
    "approve": ("address", "uint256"),
    "balanceOf": ("address",),
}


def _claim(epoch: int, leaf: Leaf, proof: MerkleProof) -> tuple[object, ...]:
    return (epoch, leaf_tuple(leaf), proof.index, proof.count, [check_digest(each) for each in proof.siblings])


def _as_they_are(*arguments: object) -> tuple[object, ...]:
    return arguments


CALLS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "renew": _as_they_are,
    "report_lapse": _as_they_are,
    "take_over": _as_they_are,
    "fund": _as_they_are,
    "reclaim": _as_they_are,
    "claim": _claim,
    "stake": lambda node, wallet, amount: (public_key_from_node(node), wallet, amount),
    "unbond": lambda node: (public_key_from_node(node),),
    "withdraw": lambda node: (public_key_from_node(node),),
    "dispute": lambda node, digest: (public_key_from_node(node), check_digest(digest)),
    "lift": lambda node, number, attestations: (
        public_key_from_node(node),
        number,
        [hex_bytes(each.signature) for each in attestations],
    ),
    "settle": lambda node: (public_key_from_node(node),),
    "propose_validators": lambda validators, quorum: (operator_tuples(validators), quorum),
    "apply_validators": _as_they_are,
    "pause": _as_they_are,
}
