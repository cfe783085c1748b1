"""A ledger in memory: the client's interface over scripted blocks, for tests and the swarm simulator.

One `MemoryChain` is shared by the `MemoryLedger` of every node. A transaction makes a block of its own; `mine` adds
empty ones, so time moves only when the script says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ledger.base import BaseLedger
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.model import RegistryModel, known_terms
from ledger.records import (
    Attestation,
    Block,
    Commit,
    FinalRoot,
    Operator,
    Proposal,
    Registration,
    RegistrationRequest,
    RunTerms,
)
from ledger.rules import RegistrationEvent, fold_registrations, is_signed_by_node
from ledger.wallet import Domain

CONTRACT = "0x5FbDB2315678afecb367f032d93F642f64180aa3"


class MemoryChain:
    """Blocks and the registry's state. Set `is_down` to make every access fail as an unreachable RPC does."""

    def __init__(self, *, chain_id: int = 31337, contract: str = CONTRACT, start: int = 1_700_000_000) -> None:
        self.model = RegistryModel(Domain(chain_id, contract))
        self.blocks = [_block(0, start)]
        self.is_down = False

    @property
    def domain(self) -> Domain:
        """What signatures on this chain are bound to."""
        return self.model.domain

    @property
    def head(self) -> Block:
        """The newest block."""
        return self.blocks[-1]

    def mine(self, count: int = 1, *, seconds: int = 1) -> Block:
        """Add `count` empty blocks, `seconds` apart; the last of them."""
        for _ in range(count):
            self.blocks.append(_block(self.head.number + 1, self.head.timestamp + seconds))
        return self.head

    def next_block(self) -> Block:
        """The block a transaction sent now is in. Raises LedgerUnavailable while down."""
        if self.is_down:
            raise LedgerUnavailable("no RPC end-point answers")
        return _block(self.head.number + 1, self.head.timestamp + 1)

    def create_run(
        self,
        *,
        run: str,
        owner: str,
        validators: Sequence[Operator],
        trainers: Sequence[Operator],
        quorum: int,
        epoch_checkpoints: int,
        epoch_max_seconds: int,
        round_seconds: int,
    ) -> RunTerms:
        """Open a run. Raises LedgerRejected as the contract does."""
        block = self.next_block()
        terms = RunTerms(
            run=run,
            owner=owner,
            validators=tuple(validators),
            trainers=tuple(trainers),
            quorum=quorum,
            epoch_checkpoints=epoch_checkpoints,
            epoch_max_seconds=epoch_max_seconds,
            round_seconds=round_seconds,
            created_block=block.number,
        )
        self.model.create_run(terms, block=block)
        self.blocks.append(block)
        return terms


class MemoryLedger(BaseLedger):
    """One node's view of a `MemoryChain`; `lag` is how many blocks it trails the newest (a slow RPC end-point)."""

    def __init__(self, chain: MemoryChain, *, run: str, operator_key: bytes | None = None, lag: int = 0) -> None:
        super().__init__(domain=chain.domain, run=run, operator_key=operator_key)
        self._chain = chain
        self._judged: dict[RegistrationEvent, bool] = {}
        self.lag = lag

    async def close(self) -> None:
        """Nothing is held."""

    async def terms(self, run: str | None = None) -> RunTerms:
        """Terms of a run."""
        self._reach()
        return known_terms(self._chain.model, run or self._must_have_run())

    async def head(self) -> Block:
        """The newest block this view shows."""
        return self._chain.blocks[max(0, self._reach() - self.lag)]

    async def block(self, number: int) -> Block | None:
        """Block by number; None when it is not there yet."""
        newest = (await self.head()).number
        return self._chain.blocks[number] if 0 <= number <= newest else None

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`."""
        newest, run = (await self.head()).number, (await self.terms()).run
        newest = newest if until is None else min(until, newest)
        events = self._chain.model.runs[run].events.registrations
        return fold_registrations(each for each in events if each.block <= newest and self._is_valid(each))

    async def commits(self, from_step: int = 0) -> Sequence[Commit]:
        """Committed checkpoints from `from_step` on."""
        newest, run = (await self.head()).number, (await self.terms()).run
        return [each for each in self._chain.model.runs[run].events.commits[from_step:] if each.block <= newest]

    async def final_roots(self) -> Sequence[FinalRoot]:
        """Final tallies, by epoch."""
        newest, run = (await self.head()).number, (await self.terms()).run
        return tuple(each for each in self._chain.model.runs[run].events.roots if each.block <= newest)

    async def _send_registration(self, request: RegistrationRequest) -> None:
        self._must_pay()
        block = self._chain.next_block()
        self._chain.model.register(request, block=block)
        self._chain.blocks.append(block)

    async def _send_commit(self, commit: Commit) -> None:
        block = self._chain.next_block()
        sent = replace(commit, block=block.number, timestamp=block.timestamp)
        self._chain.model.commit_checkpoint(self._must_have_run(), sent, sender=self._must_pay(), block=block)
        self._chain.blocks.append(block)

    async def _send_tally(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        self._must_pay()
        block = self._chain.next_block()
        self._chain.model.finalise(proposal, attestations, block=block)
        self._chain.blocks.append(block)

    async def _settle(self) -> None:
        self._reach()

    def _reach(self) -> int:
        """Number of the newest block. Raises LedgerUnavailable while the chain is down."""
        if self._chain.is_down:
            raise LedgerUnavailable("no RPC end-point answers")
        return self._chain.head.number

    def _must_pay(self) -> str:
        if self.operator is None:
            raise LedgerError("no operator key: this node can only read the ledger")
        return self.operator

    def _is_valid(self, event: RegistrationEvent) -> bool:
        if event not in self._judged:
            self._judged[event] = is_signed_by_node(event, domain=self.domain, run=self._must_have_run())
        return self._judged[event]


def _block(number: int, timestamp: int) -> Block:
    digest = hashlib.sha256(f"memory-block/1 {number} {timestamp}".encode()).hexdigest()
    return Block(number, digest, timestamp)
