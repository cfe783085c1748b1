"""The reading half of every ledger, on a chain or in memory: the registry's events, and the state derived from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from ledger import standing
from ledger.changes import Change, ValidatorsProposed
from ledger.errors import LedgerError
from ledger.events import EventLog
from ledger.records import (
    Block,
    Commit,
    FinalRoot,
    HeldStrike,
    Leaf,
    Lease,
    Registration,
    Role,
    RunTerms,
    Stake,
    ValidatorSet,
)
from ledger.rules import find_closing_block
from ledger.wallet import Domain, address_of


class LedgerView(ABC):
    """The reading half of a ledger of one run, with or without an operator key."""

    def __init__(self, *, domain: Domain, run: str | None, operator_key: bytes | None) -> None:
        self.domain = domain
        self._run = run
        self._operator_key = operator_key

    @property
    def operator(self) -> str | None:
        """Address of the operator key; None for a reader."""
        return address_of(self._operator_key) if self._operator_key else None

    @abstractmethod
    async def terms(self, run: str | None = None) -> RunTerms:
        """Terms of a run (default: this ledger's). They never change. Raises LedgerError for an unknown run."""

    @abstractmethod
    async def head(self) -> Block:
        """The newest block."""

    @abstractmethod
    async def block(self, number: int) -> Block | None:
        """The block with this number; None when it does not exist yet."""

    @abstractmethod
    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`. The caller must not modify the result."""

    @abstractmethod
    async def close(self) -> None:
        """Release connections and files."""

    @abstractmethod
    async def _log(self) -> EventLog:
        """All events of the run up to the newest block. The caller must not modify the result."""

    async def commits(self, from_step: int = 0) -> Sequence[Commit]:
        """Committed checkpoints from `from_step` on, in order."""
        return (await self._log()).commits[from_step:]

    async def final_roots(self) -> Sequence[FinalRoot]:
        """Final tallies, by epoch."""
        return tuple((await self._log()).roots)

    async def lease(self, until: int | None = None) -> Lease:
        """Which node leads, in which term, now or as of block `until`."""
        log = await self._log()
        return standing.lease_of(await self.terms(), log.commits, log.changes, until)

    async def validators_at(self, block: int | None = None) -> ValidatorSet:
        """The validators whose attestations count, now or as of a block. The contract uses the set in
        force at the call's own block."""
        return standing.validators_of(await self.terms(), (await self._log()).changes, block)

    async def waiting_validators(self) -> ValidatorsProposed | None:
        """The validator set that the owner has announced and that is not in force yet."""
        return standing.waiting_validators((await self._log()).changes)

    async def funds_at(self, block: int | None = None) -> int:
        """Base units funded and slashed, less those reclaimed, now or as of a block: the limit on what all roots
        together may promise. Claims do not lower it."""
        return standing.funds_of((await self._log()).changes, block)

    async def stakes(self, block: int | None = None) -> Mapping[tuple[str, str], Stake]:
        """Stakes by (node, wallet), now or as of a block."""
        return standing.stakes_of((await self._log()).changes, block)

    async def strikes(self, block: int | None = None) -> Sequence[HeldStrike]:
        """Every strike in the order made, in its state now or at a block."""
        return standing.strikes_of(self._must_have_run(), (await self._log()).changes, block)

    async def strike_number(self, node: str) -> int:
        """The number that the next strike of a node will have."""
        return sum(each.strike.node == node for each in await self.strikes())

    async def claimed(self, leaf: Leaf) -> int:
        """Base units paid to the leaf's wallet for its node and role, over all epochs."""
        return (await self.paid())[(leaf.role, leaf.node, leaf.wallet)] if leaf.wallet else 0

    async def paid(self) -> Counter[tuple[Role, str, str]]:
        """Base units paid, by (role, node, wallet)."""
        return standing.paid_of((await self._log()).changes)

    async def changes(self) -> Sequence[Change]:
        """Events of leases, money, strikes and validators, in chain order."""
        return tuple((await self._log()).changes)

    async def is_paused(self) -> bool:
        """Whether the owner has paused the run."""
        return standing.paused_of((await self._log()).changes)

    async def registration(self, node: str) -> Registration | None:
        """The registration in force of a node."""
        return (await self.registrations()).get(node)

    async def closing_block(self, after: int | None = None) -> Block | None:
        """The block at which the epoch that begins after block `after` closes; see `rules.find_closing_block`."""
        return await find_closing_block(self, after)

    def _must_have_run(self) -> str:
        if self._run is None:
            raise LedgerError("no run was named")
        return self._run
