"""Values the ledger holds and hands out: plain, frozen, free of any chain library.

Conventions: digests, roots and hashes are 64 lower-case hex digits without `0x`; addresses are EIP-55 `0x..`;
signatures are lower-case hex without `0x`; a node is its libp2p peer id (`12D3KooW..`); times are chain seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

ZERO_DIGEST = "0" * 64
"""Parent of checkpoint 0, and parent root of epoch 0."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's number, hash and time in chain seconds."""

    number: int
    hash: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A trainer or validator: node id, the key that pays gas and attests, and the wallet that is paid."""

    node: str
    operator: str
    payout: str


@dataclass(frozen=True, slots=True)
class RunTerms:
    """What the contract holds about a run. A node compares it with the spec: anyone may have created the id first."""

    run: str
    owner: str
    validators: tuple[Operator, ...]
    trainers: tuple[Operator, ...]
    quorum: int
    epoch_checkpoints: int
    epoch_max_seconds: int
    round_seconds: int
    created_block: int
    lease_seconds: int = 600
    takeover_blocks: int = 3


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A registration to be sent; `wallet` needs both signatures, `claimed` only the node's."""

    run: str
    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    wallet_signature: str
    node_signature: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's registration in force: that of the highest nonce whose node signature holds.

    `wallet` is set when both signatures hold, `claimed` when an address was only named. `first_block` is the block of
    the first valid registration and never moves; `block` is that of the one in force.
    """

    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    first_block: int
    block: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed checkpoint: `step` 0 is the base model; `final` says that none follows."""

    term: int
    step: int
    manifest: str
    parent: str
    final: bool
    block: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads, and until when. `until` is chain seconds, 0 before the commit of checkpoint 0 starts the lease;
    `lapse_block` is the block in which another trainer reported that it had run out, 0 while nobody has."""

    term: int
    leader: str
    until: int
    lapse_block: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tally put to the validators: what each attests by EIP-712."""

    run: str
    epoch: int
    round: int
    closing_block: int
    parent_root: str
    root: str
    total: int
    blob: str


@dataclass(frozen=True, slots=True)
class Attestation:
    """One validator operator's EIP-712 signature (65 bytes) over a proposal."""

    operator: str
    signature: str


@dataclass(frozen=True, slots=True)
class FinalRoot:
    """A tally that reached quorum. `total` is cumulative units; `blob` the digest of the tally's data."""

    epoch: int
    round: int
    closing_block: int
    root: str
    total: int
    blob: str
    block: int
    attesters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Cumulative units of one (node, wallet); `wallet` None where the node was not linked."""

    node: str
    wallet: str | None
    units: int
