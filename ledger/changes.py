"""The registry's events about leases, money, strikes and validators, one record per event.

`block` and `index` locate an event on the chain, so two events are equal only if they are the same event.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.records import Operator, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Any event except registrations, commits and roots."""

    block: int
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(Change):
    """The leader renewed its lease without a commit."""

    term: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LapseReported(Change):
    """Another trainer (its operator) reported that the lease had run out."""

    term: int
    reporter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver(Change):
    """The trainer at index `leader` leads in a new term."""

    term: int
    leader: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Funded(Change):
    """Coins were added to the run's rewards."""

    sender: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed(Change):
    """The owner took back funds that no root had promised."""

    to: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Change):
    """A wallet was paid `paid`; `amount` is the total it has received for this node and role."""

    node: str
    wallet: str
    role: Role
    amount: int
    paid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staked(Change):
    """A wallet staked coins on a node. Any of its stake that was unbonding is bonded again."""

    node: str
    wallet: str
    sender: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbonded(Change):
    """A wallet began to unbond its stake."""

    node: str
    wallet: str
    unbond_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(Change):
    """A wallet withdrew its stake."""

    node: str
    wallet: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck(Change):
    """A quorum struck a node."""

    node: str
    wallet: str | None
    number: int
    reason: int
    evidence: str
    until: int
    attesters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disputed(Change):
    """The wallet disputed a strike."""

    node: str
    number: int
    counter_evidence: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted(Change):
    """A quorum lifted a strike."""

    node: str
    number: int
    attesters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Change):
    """A strike's dispute window passed, and the stake went to the run's funds."""

    node: str
    wallet: str | None
    number: int
    slashed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorsProposed(Change):
    """The owner announced a set of validators."""

    number: int
    quorum: int
    apply_at: int
    validators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorsApplied(Change):
    """An announced set came into force."""

    number: int
    quorum: int
    validators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Change):
    """The owner paused (`on`) or resumed the run."""

    on: bool
