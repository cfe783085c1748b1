"""What is signed and hashed for the contract is fixed: changing its form needs a new version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

from ledger.merkle import leaf_hash, merkle_root
from ledger.records import ROLES_BY_NUMBER, Leaf, Proposal, Strike
from ledger.signing import lift_typed_data, rotation_message, rotation_typed_data, strike_typed_data
from ledger.wallet import (
    Domain,
    node_from_public_key,
    registration_message,
    registration_typed_data,
    tally_typed_data,
)

FILE = Path(__file__).with_name("ledger.json")
DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")
RUN, WALLET = "ab" * 32, "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
NODE, NEW_NODE = (node_from_public_key(bytes([place] * 32)) for place in (1, 2))
TALLY = Proposal(RUN, 3, 1, 120, "01" * 32, "02" * 32, 5678, "03" * 32, amount=10**20)
STRIKE = Strike(RUN, NODE, WALLET, 2, 403, "04" * 32)
LEAVES = [Leaf(NODE, WALLET, 100, role, 7) for role in ROLES_BY_NUMBER] + [Leaf(NEW_NODE, None, 2**128 - 1)]


def typed_digest(typed_data: dict[str, Any]) -> str:
    """What a wallet signs of an EIP-712 message."""
    message = encode_typed_data(full_message=typed_data)
    return bytes(keccak(b"\x19" + message.version + message.header + message.body)).hex()


def build_vectors() -> dict[str, str]:
    """Everything that is fixed."""
    place = {"run": RUN, "node": NODE, "wallet": WALLET}
    turn = {"run": RUN, "old_node": NODE, "new_node": NEW_NODE, "wallet": WALLET}
    return {
        "Registration": typed_digest(registration_typed_data(DOMAIN, **place, nonce=7)),
        "Rotation": typed_digest(rotation_typed_data(DOMAIN, **turn, nonce=8)),
        "Tally": typed_digest(tally_typed_data(DOMAIN, TALLY)),
        "Strike": typed_digest(strike_typed_data(DOMAIN, STRIKE)),
        "Lift": typed_digest(lift_typed_data(DOMAIN, run=RUN, node=NODE, number=2)),
        "registration/1": registration_message(DOMAIN, **place, claimed=None, nonce=7).hex(),
        "rotation/1": rotation_message(DOMAIN, **turn, nonce=8).hex(),
        "tally-leaf/2": leaf_hash(LEAVES[3]).hex(),
        "tally-root/1": merkle_root(LEAVES),
    }


@pytest.mark.parametrize("name", sorted(build_vectors()))
def test_vectors__are_as_they_were(name: str) -> None:
    assert build_vectors()[name] == json.loads(FILE.read_text())[name]


def test_vectors__all_are_kept() -> None:
    assert set(build_vectors()) == set(json.loads(FILE.read_text()))


if __name__ == "__main__":
    FILE.write_text(json.dumps(build_vectors(), indent=2) + "\n")
