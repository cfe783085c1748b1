"""The registry's calls. Each is judged in the state of the block it would be in. A refused call raises
LedgerRejected and changes nothing.

Calls that anyone may send ignore `sender`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ledger.changes import Paused, ValidatorsApplied, ValidatorsProposed
from ledger.errors import LedgerRejected
from ledger.merkle import MerkleProof
from ledger.model import money, nodes, training
from ledger.model.state import HeldSet, RunState, check_set, check_terms, require
from ledger.records import (
    Attestation,
    Block,
    Commit,
    Leaf,
    Operator,
    Proposal,
    RegistrationRequest,
    RotationRequest,
    RunTerms,
    Strike,
)
from ledger.wallet import Domain


class RegistryModel:
    """The contract's state and its calls. `received` is what each address received in coins, less what it paid."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.runs: dict[str, RunState] = {}
        self.received: Counter[str] = Counter()

    def create_run(self, terms: RunTerms, *, block: Block) -> None:
        """Create a run."""
        require(terms.run not in self.runs, "run exists")
        check_terms(terms)
        first = HeldSet(terms.validators, terms.quorum, 0)
        self.runs[terms.run] = RunState(
            terms, closed_at=block.timestamp, closing_block=block.number, active_at=block.timestamp, sets=[first]
        )

    def register(self, request: RegistrationRequest, *, block: Block) -> None:
        """Emit a registration. The node's signature is not checked."""
        nodes.register(self._open(request.run), self.domain, request, block)

    def rotate(self, request: RotationRequest, *, block: Block) -> None:
        """Emit a rotation. The nodes' signatures are not checked."""
        nodes.rotate(self._open(request.run), self.domain, request, block)

    def commit_checkpoint(self, run: str, commit: Commit, *, sender: str, block: Block) -> None:
        """Commit a checkpoint; its block and time are those of `block`."""
        training.commit_checkpoint(self._open(run), commit, sender, block)

    def renew(self, run: str, *, sender: str, block: Block) -> None:
        """Renew the lease without a checkpoint."""
        training.renew(self._run(run), sender, block)

    def report_lapse(self, run: str, *, sender: str, block: Block) -> None:
        """Report that the lease has lapsed."""
        training.report_lapse(self._open(run), sender, block)

    def take_over(self, run: str, *, sender: str, block: Block) -> None:
        """Take the lead in a new term."""
        training.take_over(self._open(run), sender, block)

    def finalise(self, proposal: Proposal, attestations: Sequence[Attestation], *, block: Block) -> None:
        """Make a tally final."""
        training.finalise(self._open(proposal.run), self.domain, proposal, attestations, block)

    def fund(self, run: str, amount: int, *, sender: str, block: Block) -> None:
        """Add to a run's rewards."""
        money.fund(self._run(run), amount, sender, block)
        self.received[sender] -= amount

    def reclaim(self, run: str, to: str, *, sender: str, block: Block) -> None:
        """Return to the owner what no root has promised."""
        self.received[to] += money.reclaim(self._open(run), to, sender, block)

    def claim(self, run: str, epoch: int, leaf: Leaf, proof: MerkleProof, *, sender: str, block: Block) -> None:
        """Pay a leaf's wallet what a final root grants it and has not been paid yet."""
        paid = money.claim(self._run(run), epoch, leaf, proof, block)
        self.received[leaf.wallet or ""] += paid

    def stake(self, run: str, node: str, wallet: str, amount: int, *, sender: str, block: Block) -> None:
        """Stake a wallet's coins on a node."""
        money.stake(self._open(run), (node, wallet), amount, sender, block)
        self.received[sender] -= amount

    def unbond(self, run: str, node: str, *, sender: str, block: Block) -> None:
        """Begin to unbond the sender's stake in a node."""
        money.unbond(self.runs.get(run), (node, sender), block)

    def withdraw(self, run: str, node: str, *, sender: str, block: Block) -> None:
        """Pay the sender's unbonded stake out."""
        self.received[sender] += money.withdraw(self.runs.get(run), (node, sender), block)

    def strike(self, strike: Strike, attestations: Sequence[Attestation], *, block: Block) -> None:
        """Eject a node and freeze one of its stakes."""
        nodes.strike(self._open(strike.run), self.domain, strike, attestations, block)

    def dispute(self, run: str, node: str, counter_evidence: str, *, sender: str, block: Block) -> None:
        """Dispute a strike."""
        nodes.dispute(self.runs.get(run), node, counter_evidence, sender, block)

    def lift(
        self, run: str, node: str, number: int, attestations: Sequence[Attestation], *, sender: str, block: Block
    ) -> None:
        """Lift an open strike."""
        nodes.lift(self.runs.get(run), self.domain, node, number, attestations, block)

    def settle(self, run: str, node: str, *, sender: str, block: Block) -> None:
        """Close a strike whose window has passed."""
        nodes.settle(self.runs.get(run), node, block)

    def propose_validators(
        self, run: str, validators: Sequence[Operator], quorum: int, *, sender: str, block: Block
    ) -> None:
        """Announce a new set of validators."""
        state = self._owned(run, sender)
        check_set(validators, quorum)
        apply_at, number = block.timestamp + state.terms.change_seconds, len(state.sets)
        state.sets.append(HeldSet(tuple(validators), quorum, apply_at))
        state.set_waiting = number
        state.events.changes.append(
            ValidatorsProposed(
                number=number, quorum=quorum, apply_at=apply_at, validators=tuple(validators), block=block.number
            )
        )

    def apply_validators(self, run: str, *, sender: str, block: Block) -> None:
        """Put the announced validators in force."""
        state = self.runs.get(run)
        if state is None or state.set_waiting == 0:
            raise LedgerRejected("no change waits")
        number = state.set_waiting
        changed = state.sets[number]
        require(block.timestamp >= changed.apply_at, "change must wait")
        state.set_in_force, state.set_waiting = number, 0
        state.events.changes.append(
            ValidatorsApplied(number=number, quorum=changed.quorum, validators=changed.validators, block=block.number)
        )

    def pause(self, run: str, on: bool, *, sender: str, block: Block) -> None:
        """Pause or resume what the owner may pause."""
        state = self._owned(run, sender)
        require(state.is_paused != on, "nothing changes")
        state.is_paused = on
        if not on:
            state.active_at = block.timestamp
        state.events.changes.append(Paused(on=on, block=block.number))

    def _run(self, run: str) -> RunState:
        require(run in self.runs, "unknown run")
        return self.runs[run]

    def _open(self, run: str) -> RunState:
        state = self._run(run)
        require(not state.is_paused, "run is paused")
        return state

    def _owned(self, run: str, sender: str) -> RunState:
        state = self._run(run)
        require(sender == state.terms.owner, "not the owner")
        return state
