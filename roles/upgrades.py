"""What the run's owner requires of every node's software from a step on, signed by the account that
owns the run on the ledger.

Nobody's credit depends on it, so it need not be on the ledger: each node checks the signature and decides for itself
whether it can still take part. Pure.
"""

from __future__ import annotations

from typing import Any

from ledger.wallet import Domain, recover_typed_data, sign_typed_data, typed_data
from roles.messages import UpgradeRow
from roles.spec import RunSpec

FIELDS = [
    {"name": "run", "type": "bytes32"},
    {"name": "number", "type": "uint256"},
    {"name": "messages", "type": "uint256"},
    {"name": "software", "type": "string"},
    {"name": "step", "type": "uint256"},
    {"name": "by", "type": "uint256"},
]


def upgrade_typed_data(demand: UpgradeRow, spec: RunSpec) -> dict[str, Any]:
    """The EIP-712 message that the owner signs."""
    message = {
        "run": "0x" + demand.run,
        "number": demand.number,
        "messages": demand.messages,
        "software": demand.software,
        "step": demand.step,
        "by": demand.by,
    }
    return typed_data(Domain(spec.ledger.chain_id, spec.ledger.contract), "Upgrade", FIELDS, message)


def sign_upgrade(demand: UpgradeRow, spec: RunSpec, key: bytes) -> UpgradeRow:
    """The demand with the owner's signature."""
    return demand.model_copy(update={"signature": sign_typed_data(upgrade_typed_data(demand, spec), key)})


def is_of_owner(demand: UpgradeRow, spec: RunSpec, owner: str) -> bool:
    """Whether the account that owns the run has signed this."""
    signer = recover_typed_data(upgrade_typed_data(demand, spec), demand.signature)
    return demand.run == spec.run_id and signer is not None and signer.lower() == owner.lower()


def is_met(demand: UpgradeRow, *, software: str, messages: int) -> bool:
    """Whether a node with this version satisfies the demand. A version that does not parse counts as old."""
    return messages >= demand.messages and _numbers(software) >= _numbers(demand.software)


def _numbers(version: str) -> tuple[int, ...]:
    """`1.2.3` and `1.2.3.dev4+x` as (1, 2, 3)."""
    numbers = []
    for part in version.split(".")[:3]:
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple([*numbers, 0, 0, 0][:3])
