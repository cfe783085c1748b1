"""The registry contract's rules in Python, reason for reason: what `MemoryLedger` runs and the contract is tested by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.errors import LedgerError, LedgerRejected
from ledger.events import EventLog
from ledger.records import (
    ZERO_DIGEST,
    Attestation,
    Block,
    Commit,
    FinalRoot,
    Operator,
    Proposal,
    RegistrationRequest,
    RunTerms,
)
from ledger.rules import MAX_NONCE, MAX_STEP, MAX_TOTAL, RegistrationEvent
from ledger.wallet import NO_ADDRESS, Domain, recover_typed_data, registration_typed_data, tally_typed_data


@dataclass(slots=True)
class RunState:
    """A run as the contract holds it. `closed_at` and `closing_block` are the last tally's, or the creation's."""

    terms: RunTerms
    closed_at: int
    closing_block: int
    events: EventLog = field(default_factory=EventLog)
    nonces: dict[tuple[str, str], int] = field(default_factory=dict)


class RegistryModel:
    """The contract's state and its calls. Each call is judged as of the block it would be in, or changes nothing."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.runs: dict[str, RunState] = {}

    def create_run(self, terms: RunTerms, *, block: Block) -> None:
        """Open a run. Raises LedgerRejected."""
        count = len(terms.validators)
        _require(terms.run != ZERO_DIGEST, "run id is zero")
        _require(terms.run not in self.runs, "run exists")
        _require(count > 0, "no validator")
        _require(len(terms.trainers) > 0, "no trainer")
        _require(terms.quorum * 2 > count and terms.quorum <= count, "quorum")
        _require(0 < terms.epoch_checkpoints <= MAX_STEP, "epoch checkpoints")
        _require(0 < terms.epoch_max_seconds <= MAX_STEP, "epoch seconds")
        _require(0 < terms.round_seconds <= MAX_STEP, "round seconds")
        _check_operators(terms.validators)
        _check_operators(terms.trainers)
        self.runs[terms.run] = RunState(terms, closed_at=block.timestamp, closing_block=block.number)

    def register(self, request: RegistrationRequest, *, block: Block) -> None:
        """Emit a registration. The node's signature is not judged. Raises LedgerRejected."""
        state = self._run(request.run)
        _require(0 < request.nonce <= MAX_NONCE, "nonce")
        _require(len(request.node_signature) == 128, "node signature length")
        if request.wallet is None:
            _require(request.wallet_signature == "", "signature without a wallet")
        else:
            self._link(state, request, request.wallet)
        state.events.registrations.append(
            RegistrationEvent(
                request.node, request.wallet, request.claimed, request.nonce, request.node_signature, block.number
            )
        )

    def commit_checkpoint(self, run: str, commit: Commit, *, sender: str, block: Block) -> None:
        """Put a checkpoint in force; its block and time are `block`'s. Raises LedgerRejected."""
        state = self._run(run)
        commits = state.events.commits
        _require(sender == state.terms.trainers[0].operator, "not the leading trainer")
        _require(commit.term == 1, "term")
        _require(commit.manifest != ZERO_DIGEST, "manifest is zero")
        _require(commit.step == len(commits), "step")
        _require(not (commits and commits[-1].final), "run has ended")
        _require(commit.parent == (commits[-1].manifest if commits else ZERO_DIGEST), "parent")
        fields = (commit.term, commit.step, commit.manifest, commit.parent, commit.final)
        commits.append(Commit(*fields, block=block.number, timestamp=block.timestamp))

    def finalise(self, proposal: Proposal, attestations: Sequence[Attestation], *, block: Block) -> None:
        """Make a tally final. Raises LedgerRejected."""
        state = self._run(proposal.run)
        roots = state.events.roots
        _require(proposal.epoch == len(roots), "epoch")
        _require(proposal.parent_root == (roots[-1].root if roots else ZERO_DIGEST), "parent root")
        _require(proposal.root != ZERO_DIGEST, "root is zero")
        _require(0 <= proposal.round <= MAX_STEP, "round")
        _require((roots[-1].total if roots else 0) <= proposal.total <= MAX_TOTAL, "total")
        closed_at = _close(state, proposal.closing_block, block)
        attesters = self._attesters(state, proposal, attestations)
        _require(len(attesters) >= state.terms.quorum, "too few attestations")
        state.closed_at, state.closing_block = closed_at, proposal.closing_block
        roots.append(
            FinalRoot(
                epoch=proposal.epoch,
                round=proposal.round,
                closing_block=proposal.closing_block,
                root=proposal.root,
                total=proposal.total,
                blob=proposal.blob,
                block=block.number,
                attesters=attesters,
            )
        )

    def _run(self, run: str) -> RunState:
        _require(run in self.runs, "unknown run")
        return self.runs[run]

    def _link(self, state: RunState, request: RegistrationRequest, wallet: str) -> None:
        _require(request.claimed is None, "both linked and claimed")
        key = (request.node, wallet)
        _require(request.nonce > state.nonces.get(key, 0), "nonce")
        typed = registration_typed_data(
            self.domain, run=request.run, node=request.node, wallet=wallet, nonce=request.nonce
        )
        _require(recover_typed_data(typed, request.wallet_signature) == wallet, "wallet signature")
        state.nonces[key] = request.nonce

    def _attesters(self, state: RunState, proposal: Proposal, attestations: Sequence[Attestation]) -> tuple[str, ...]:
        typed = tally_typed_data(self.domain, proposal)
        validators = {each.operator for each in state.terms.validators}
        attesters: list[str] = []
        for attestation in attestations:
            signer = recover_typed_data(typed, attestation.signature)
            if signer is None or signer not in validators:
                raise LedgerRejected("not a validator")
            _require(signer not in attesters, "attester repeated")
            attesters.append(signer)
        return tuple(attesters)


def _close(state: RunState, closing_block: int, block: Block) -> int:
    """A time no later than the closing block's. Raises LedgerRejected when no epoch can have closed there."""
    _require(state.closing_block < closing_block <= block.number, "closing block")
    until = [each for each in state.events.commits if each.block <= closing_block]
    new = [each for each in until if each.block > state.closing_block]
    ended = bool(until) and until[-1].final
    if new and (ended or len(new) >= state.terms.epoch_checkpoints):
        return new[-1].timestamp
    patience = state.terms.epoch_max_seconds
    if ended:
        patience = min(patience, state.terms.round_seconds)
    _require(block.timestamp >= state.closed_at + patience, "epoch is open")
    return state.closed_at + patience


def _check_operators(operators: Sequence[Operator]) -> None:
    for index, one in enumerate(operators):
        _require(one.operator != NO_ADDRESS, "operator is zero")
        _require(one.payout != NO_ADDRESS, "payout is zero")
        for other in operators[index + 1 :]:
            _require(one.node != other.node, "node repeated")
            _require(one.operator != other.operator, "operator repeated")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise LedgerRejected(reason)


def known_terms(model: RegistryModel, run: str) -> RunTerms:
    """Terms of a run. Raises LedgerError for an unknown one."""
    if run not in model.runs:
        raise LedgerError(f"the ledger knows no run {run}")
    return model.runs[run].terms
