"""A run's state in the contract, and the checks its calls share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.errors import LedgerRejected
from ledger.events import EventLog
from ledger.records import ZERO_DIGEST, Attestation, Block, Operator, Role, RunTerms, Stake
from ledger.rules import MAX_STEP, MAX_TOTAL
from ledger.wallet import NO_ADDRESS, recover_typed_data

ABANDONED_SECONDS = 30 * 86400
"""A run without a final checkpoint counts as over when this long has passed without a commit or a tally."""


@dataclass(slots=True)
class HeldSet:
    """A set of validators, in force or not."""

    validators: tuple[Operator, ...]
    quorum: int
    apply_at: int


@dataclass(slots=True)
class LastStrike:
    """The last strike of a node."""

    wallet: str | None
    number: int
    until: int
    is_disputed: bool = False
    is_open: bool = True


@dataclass(slots=True)
class RunState:
    """A run's state in the contract. `closed_at` and `closing_block` are those of the last tally, or of
    the run's creation. `leader` is an index into the trainers. `funds` excludes what was reclaimed;
    `promised` and `paid` are cumulative."""

    terms: RunTerms
    closed_at: int
    closing_block: int
    active_at: int
    events: EventLog = field(default_factory=EventLog)
    nonces: dict[tuple[str, str], int] = field(default_factory=dict)
    is_paused: bool = False
    term: int = 1
    leader: int = 0
    until: int = 0
    lapse_block: int = 0
    sets: list[HeldSet] = field(default_factory=list)
    set_in_force: int = 0
    set_waiting: int = 0
    funds: int = 0
    promised: int = 0
    paid: int = 0
    paid_of: Counter[tuple[Role, str, str]] = field(default_factory=Counter)
    stakes: dict[tuple[str, str], Stake] = field(default_factory=dict)
    strikes: dict[str, LastStrike] = field(default_factory=dict)
    strike_count: Counter[str] = field(default_factory=Counter)
    standing_strikes: Counter[str] = field(default_factory=Counter)

    @property
    def has_ended(self) -> bool:
        """Whether the last commit is the final checkpoint."""
        return bool(self.events.commits) and self.events.commits[-1].final

    def extend_lease(self, block: Block) -> None:
        """Start a new lease at `block`."""
        self.until, self.lapse_block = block.timestamp + self.terms.lease_seconds, 0

    def credit(self, amount: int) -> None:
        """Add to the funds. Raises LedgerRejected."""
        require(self.funds + amount <= MAX_TOTAL, "too much")
        self.funds += amount

    def open_strike(self, node: str) -> LastStrike:
        """The open strike of a node. Raises LedgerRejected."""
        held = self.strikes.get(node)
        if held is None or not held.is_open:
            raise LedgerRejected("no strike is open")
        return held

    def attesters(self, typed_data: dict[str, Any], attestations: Sequence[Attestation]) -> tuple[str, ...]:
        """The distinct operators of validators in force who signed, at least a quorum. Raises LedgerRejected."""
        held = self.sets[self.set_in_force]
        validators = {each.operator for each in held.validators}
        attesters: list[str] = []
        for attestation in attestations:
            signer = recover_typed_data(typed_data, attestation.signature)
            if signer is None or signer not in validators:
                raise LedgerRejected("not a validator")
            require(signer not in attesters, "attester repeated")
            attesters.append(signer)
        require(len(attesters) >= held.quorum, "too few attestations")
        return tuple(attesters)


def require(condition: bool, reason: str) -> None:
    """Raise LedgerRejected unless the condition holds."""
    if not condition:
        raise LedgerRejected(reason)


def check_terms(terms: RunTerms) -> None:
    """Refuse windows of zero length and numbers that could overflow. Raises LedgerRejected."""
    require(terms.run != ZERO_DIGEST, "run id is zero")
    require(len(terms.trainers) > 0, "no trainer")
    check_set(terms.validators, terms.quorum)
    check_operators(terms.trainers)
    windows = {
        "epoch checkpoints": terms.epoch_checkpoints,
        "epoch seconds": terms.epoch_max_seconds,
        "round seconds": terms.round_seconds,
        "lease seconds": terms.lease_seconds,
        "takeover blocks": terms.takeover_blocks,
        "unbond seconds": terms.unbond_seconds,
        "dispute seconds": terms.dispute_seconds,
        "change seconds": terms.change_seconds,
    }
    for reason, value in windows.items():
        require(0 < value <= MAX_STEP, reason)
    require(0 <= terms.min_stake <= MAX_TOTAL, "minimum stake")
    require(0 <= terms.epoch_budget <= MAX_TOTAL, "epoch budget")


def check_set(validators: Sequence[Operator], quorum: int) -> None:
    """Refuse a set in which no quorum would be meaningful. Raises LedgerRejected."""
    require(len(validators) > 0, "no validator")
    require(quorum * 2 > len(validators) and quorum <= len(validators), "quorum")
    check_operators(validators)


def check_operators(operators: Sequence[Operator]) -> None:
    """Refuse zero or repeated nodes and operators. Raises LedgerRejected."""
    for index, one in enumerate(operators):
        require(one.operator != NO_ADDRESS, "operator is zero")
        require(one.payout != NO_ADDRESS, "payout is zero")
        for other in operators[index + 1 :]:
            require(one.node != other.node, "node repeated")
            require(one.operator != other.operator, "operator repeated")
