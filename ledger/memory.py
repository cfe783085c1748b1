"""A ledger in memory: the client's interface over scripted blocks, for tests and the swarm simulator.

One `MemoryChain` is shared by the `MemoryLedger` of every node. Each transaction makes its own block, and `mine` adds
empty ones, so time moves only when the script says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ledger.base import BaseLedger
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.events import EventLog
from ledger.model import RegistryModel
from ledger.records import (
    Attestation,
    Block,
    Commit,
    Proposal,
    Registration,
    RegistrationRequest,
    RotationRequest,
    RunTerms,
    Strike,
)
from ledger.registrations import SignedRegistrations
from ledger.wallet import Domain

CHAIN_ID = 31337
CONTRACT = "0x5FbDB2315678afecb367f032d93F642f64180aa3"


class MemoryChain:
    """Blocks and the registry's state. Set `is_down` to make every access fail like an unreachable RPC end-point."""

    def __init__(self, *, start: int = 1_700_000_000) -> None:
        self.model = RegistryModel(Domain(CHAIN_ID, CONTRACT))
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
        """Add `count` empty blocks, `seconds` apart. Returns the last of them."""
        for _ in range(count):
            self.blocks.append(_block(self.head.number + 1, self.head.timestamp + seconds))
        return self.head

    def next_block(self) -> Block:
        """The block that would contain a transaction sent now. Raises LedgerUnavailable while down."""
        if self.is_down:
            raise LedgerUnavailable("no RPC end-point answers")
        return _block(self.head.number + 1, self.head.timestamp + 1)

    def create_run(self, terms: RunTerms) -> RunTerms:
        """Create a run. Returns its terms with the block of creation. Raises LedgerRejected as the contract does."""
        block = self.next_block()
        terms = replace(terms, created_block=block.number)
        self.model.create_run(terms, block=block)
        self.blocks.append(block)
        return terms


class MemoryLedger(BaseLedger):
    """One node's view of a `MemoryChain`. `lag` is how many blocks it trails the newest (a slow RPC end-point)."""

    def __init__(self, chain: MemoryChain, *, run: str, operator_key: bytes | None = None, lag: int = 0) -> None:
        super().__init__(domain=chain.domain, run=run, operator_key=operator_key)
        self._chain = chain
        self._registrations = SignedRegistrations(domain=chain.domain, run=run)
        self.lag = lag

    async def close(self) -> None:
        """Nothing to release."""

    async def terms(self, run: str | None = None) -> RunTerms:
        """Terms of a run."""
        self._reach()
        run = run or self._must_have_run()
        if run not in self._chain.model.runs:
            raise LedgerError(f"the ledger knows no run {run}")
        return self._chain.model.runs[run].terms

    async def head(self) -> Block:
        """The newest block this view shows."""
        return self._chain.blocks[max(0, self._reach() - self.lag)]

    async def block(self, number: int) -> Block | None:
        """The block with this number; None when it does not exist yet."""
        newest = (await self.head()).number
        return self._chain.blocks[number] if 0 <= number <= newest else None

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`."""
        return self._registrations.in_force((await self._log()).registrations, until)

    async def _log(self) -> EventLog:
        newest, run = (await self.head()).number, (await self.terms()).run
        return self._chain.model.runs[run].events.until(newest)

    async def _send_registration(self, request: RegistrationRequest) -> None:
        self._put_in_block(lambda sender, block: self._chain.model.register(request, block=block))

    async def _send_rotation(self, request: RotationRequest) -> None:
        self._put_in_block(lambda sender, block: self._chain.model.rotate(request, block=block))

    async def _send_commit(self, commit: Commit) -> None:
        run = self._must_have_run()
        self._put_in_block(
            lambda sender, block: self._chain.model.commit_checkpoint(
                run, replace(commit, block=block.number, timestamp=block.timestamp), sender=sender, block=block
            )
        )

    async def _send_tally(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        self._put_in_block(lambda sender, block: self._chain.model.finalise(proposal, attestations, block=block))

    async def _send_strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None:
        self._put_in_block(lambda sender, block: self._chain.model.strike(strike, attestations, block=block))

    async def _call(self, name: str, *arguments: object) -> None:
        call: Callable[..., None] = getattr(self._chain.model, name)
        run = self._must_have_run()
        self._put_in_block(lambda sender, block: call(run, *arguments, sender=sender, block=block))

    def _put_in_block(self, call: Callable[[str, Block], None]) -> None:
        """Make a block from one call. Raises LedgerRejected, with no block made, when the contract refuses it."""
        sender, block = self._must_pay(), self._chain.next_block()
        call(sender, block)
        self._chain.blocks.append(block)

    async def _settle(self) -> None:
        self._reach()

    def _reach(self) -> int:
        """Number of the newest visible block. Raises LedgerUnavailable while the chain is down."""
        if self._chain.is_down:
            raise LedgerUnavailable("no RPC end-point answers")
        return self._chain.head.number

    def _must_pay(self) -> str:
        if self.operator is None:
            raise LedgerError("no operator key: this node can only read the ledger")
        return self.operator


def _block(number: int, timestamp: int) -> Block:
    digest = hashlib.sha256(f"memory-block/1 {number} {timestamp}".encode()).hexdigest()
    return Block(number, digest, timestamp)
