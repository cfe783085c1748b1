"""Values that the ledger stores and returns: plain, frozen, independent of any chain library.

Conventions: digests, roots and hashes are 64 lower-case hex digits without `0x`; addresses are EIP-55 `0x..`;
signatures are lower-case hex without `0x`; a node is its libp2p peer id (`12D3KooW..`); times are chain seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

ZERO_DIGEST = "0" * 64
"""Parent of checkpoint 0, and parent root of epoch 0."""
FIRST_TERM = 1
Role = Literal["worker", "validator", "relay", "trainer"]
ROLES_BY_NUMBER: tuple[Role, ...] = ("worker", "validator", "relay", "trainer")
"""Roles that can earn. A role's index is its number in the contract."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's number, hash and time in chain seconds."""

    number: int
    hash: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A trainer or validator: node id, the operator key that pays gas and attests, and the wallet that is paid."""

    node: str
    operator: str
    payout: str


@dataclass(frozen=True, slots=True)
class RunTerms:
    """A run's terms in the contract. A node compares them with the spec, because anyone may have created the id first.

    Terms never change: validators and quorum are those at creation (`validators_at` gives later ones). Amounts are base
    units of `token` (None: the native coin), times chain seconds.
    """

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
    min_stake: int = 0
    unbond_seconds: int = 86400
    dispute_seconds: int = 86400
    change_seconds: int = 86400
    epoch_budget: int = 0
    token: str | None = None


class NewRun(TypedDict):
    """Arguments for creating a run. Units as in `RunTerms`, which also has the defaults for what is omitted."""

    run: str
    validators: tuple[Operator, ...]
    trainers: tuple[Operator, ...]
    quorum: int
    epoch_checkpoints: int
    epoch_max_seconds: int
    round_seconds: int
    lease_seconds: NotRequired[int]
    takeover_blocks: NotRequired[int]
    min_stake: NotRequired[int]
    unbond_seconds: NotRequired[int]
    dispute_seconds: NotRequired[int]
    change_seconds: NotRequired[int]
    epoch_budget: NotRequired[int]
    token: NotRequired[str | None]


@dataclass(frozen=True, slots=True)
class ValidatorSet:
    """The validators whose attestations count, and how many are needed. `number` counts the sets proposed, from 0;
    `block` is where this one came into force."""

    number: int
    validators: tuple[Operator, ...]
    quorum: int
    block: int


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A registration to be sent. `wallet` needs both signatures, `claimed` only the node's."""

    run: str
    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    wallet_signature: str
    node_signature: str


@dataclass(frozen=True, slots=True)
class RotationRequest:
    """Replaces one node key by another. Signed by the new key, and by the wallet in force or, where
    `wallet` is None, by the old key."""

    run: str
    old_node: str
    new_node: str
    wallet: str | None
    nonce: int
    wallet_signature: str
    old_node_signature: str
    new_node_signature: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's registration in force: the one with the highest nonce whose node signature is valid.

    `wallet` is set when both signatures are valid, `claimed` when an address was only named. `first_block` is the block
    of the first valid registration and never changes, not by a rotation either; `block` is that of the one in force.
    `previous` are the keys this node had before, oldest first: their strikes, history and stakes are its own. `links`
    are the wallets it was linked to in turn, each with the block it was linked from (None: it was unlinked).
    """

    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    first_block: int
    block: int
    previous: tuple[str, ...] = ()
    links: tuple[tuple[int, str | None], ...] = ()

    @property
    def root(self) -> str:
        """The key of the first registration. Draws and counts for the node go by this key."""
        return self.previous[0] if self.previous else self.node

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key the node has had, oldest first."""
        return (*self.previous, self.node)

    def wallets_since(self, block: int) -> tuple[str, ...]:
        """The wallets the node was linked to in this block or later, each once, in order."""
        links = self.links or ((self.first_block, self.wallet),)
        before = [wallet for since, wallet in links if since < block][-1:]
        after = [wallet for since, wallet in links if since >= block]
        return tuple(dict.fromkeys(wallet for wallet in (*before, *after) if wallet is not None))


def by_any_key(registrations: Mapping[str, Registration]) -> dict[str, Registration]:
    """Registrations in force, indexed by every key that their nodes have or had."""
    return {key: held for node, held in registrations.items() for key in (*held.previous, node)}


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed checkpoint. `step` 0 is the base model; `final` means that none follows."""

    term: int
    step: int
    manifest: str
    parent: str
    final: bool
    block: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Which node leads, and until when. `until` is in chain seconds, 0 before the commit of checkpoint 0 starts the
    lease. `lapse_block` is the block in which another trainer reported that it had run out, 0 while nobody has."""

    term: int
    leader: str
    until: int
    lapse_block: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tally put to the validators, who attest it by EIP-712. `total` is cumulative units, `amount`
    cumulative pay in base units."""

    run: str
    epoch: int
    round: int
    closing_block: int
    parent_root: str
    root: str
    total: int
    blob: str
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Attestation:
    """One validator operator's EIP-712 signature (65 bytes) over a proposal, a strike or the lifting of a strike."""

    operator: str
    signature: str


@dataclass(frozen=True, slots=True)
class FinalRoot:
    """A tally that reached quorum. `total` is cumulative units, `amount` cumulative pay; `blob` is
    the digest of the tally's data."""

    epoch: int
    round: int
    closing_block: int
    root: str
    total: int
    blob: str
    block: int
    attesters: tuple[str, ...]
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Leaf:
    """Cumulative units and pay of one (role, node, wallet). `wallet` is None where the node was not
    linked; such a leaf is never paid."""

    node: str
    wallet: str | None
    units: int
    role: Role = "worker"
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Stake:
    """Coins of `wallet` behind `node`; `unbond_at` is when they may be withdrawn, 0 while bonded."""

    node: str
    wallet: str
    amount: int
    unbond_at: int


@dataclass(frozen=True, slots=True)
class Strike:
    """What a quorum of validators signs to eject a node. `wallet` is the one whose stake is at risk, None for nobody's;
    `number` is how many strikes the node had before; `evidence` is a digest."""

    run: str
    node: str
    wallet: str | None
    number: int
    reason: int
    evidence: str


@dataclass(frozen=True, slots=True)
class HeldStrike:
    """A strike on the ledger. `until` ends its dispute window, in chain seconds; `counter_evidence` is
    None while nobody has disputed it. It ejects the node unless it is lifted; `slashed` is the amount
    taken from the wallet's stake."""

    strike: Strike
    block: int
    until: int
    attesters: tuple[str, ...]
    outcome: Literal["open", "lifted", "settled"] = "open"
    counter_evidence: str | None = None
    slashed: int = 0
