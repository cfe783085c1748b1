"""Checkpoints, leases and tallies: who may lead, and when a tally is final."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.changes import LapseReported, Renewed, TakenOver
from ledger.errors import LedgerRejected
from ledger.model.state import RunState, require
from ledger.records import ZERO_DIGEST, Attestation, Block, Commit, FinalRoot, Proposal
from ledger.rules import MAX_STEP, MAX_TOTAL
from ledger.wallet import Domain, tally_typed_data


def commit_checkpoint(state: RunState, commit: Commit, sender: str, block: Block) -> None:
    """Commit a checkpoint and renew the lease. Raises LedgerRejected."""
    commits = state.events.commits
    _must_lead(state, sender)
    require(commit.term == state.term, "term")
    require(commit.manifest != ZERO_DIGEST, "manifest is zero")
    require(commit.step == len(commits), "step")
    require(not state.has_ended, "run has ended")
    require(commit.parent == (commits[-1].manifest if commits else ZERO_DIGEST), "parent")
    fields = (commit.term, commit.step, commit.manifest, commit.parent, commit.final)
    commits.append(Commit(*fields, block=block.number, timestamp=block.timestamp))
    state.active_at = block.timestamp
    state.extend_lease(block)


def renew(state: RunState, sender: str, block: Block) -> None:
    """Renew the lease without a checkpoint. Raises LedgerRejected."""
    _must_lead(state, sender)
    _must_have_lease(state)
    state.extend_lease(block)
    state.events.changes.append(Renewed(term=state.term, until=state.until, block=block.number))


def report_lapse(state: RunState, sender: str, block: Block) -> None:
    """Report that the lease has lapsed. Raises LedgerRejected."""
    _distance(state, sender)
    _must_have_lease(state)
    require(block.timestamp > state.until, "lease")
    require(state.lapse_block == 0, "lapse")
    state.lapse_block = block.number
    state.events.changes.append(LapseReported(term=state.term, reporter=sender, block=block.number))


def take_over(state: RunState, sender: str, block: Block) -> None:
    """Take the lead in a new term. Raises LedgerRejected."""
    distance = _distance(state, sender)
    require(state.lapse_block > 0 and block.number >= state.lapse_block + state.terms.takeover_blocks, "lapse")
    require(block.timestamp > state.until + (distance - 1) * state.terms.lease_seconds, "lease")
    state.term += 1
    state.leader = (state.leader + distance) % len(state.terms.trainers)
    state.extend_lease(block)
    taken = TakenOver(term=state.term, leader=state.leader, until=state.until, block=block.number)
    state.events.changes.append(taken)


def finalise(
    state: RunState, domain: Domain, proposal: Proposal, attestations: Sequence[Attestation], block: Block
) -> None:
    """Make a tally final. Raises LedgerRejected."""
    roots = state.events.roots
    last = roots[-1] if roots else None
    require(proposal.epoch == len(roots), "epoch")
    require(proposal.parent_root == (last.root if last else ZERO_DIGEST), "parent root")
    require(proposal.root != ZERO_DIGEST, "root is zero")
    require(0 <= proposal.round <= MAX_STEP, "round")
    require((last.total if last else 0) <= proposal.total <= MAX_TOTAL, "units")
    require(state.promised <= proposal.amount <= state.promised + state.terms.epoch_budget, "amount")
    require(proposal.amount <= state.funds, "funds")
    closed_at = _close(state, proposal.closing_block, block)
    attesters = state.attesters(tally_typed_data(domain, proposal), attestations)
    state.closed_at, state.closing_block = closed_at, proposal.closing_block
    state.promised, state.active_at = proposal.amount, block.timestamp
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
            amount=proposal.amount,
        )
    )


def _must_lead(state: RunState, sender: str) -> None:
    require(sender == state.terms.trainers[state.leader].operator, "not the leading trainer")


def _must_have_lease(state: RunState) -> None:
    require(state.until > 0, "lease has not begun")
    require(not state.has_ended, "run has ended")


def _distance(state: RunState, sender: str) -> int:
    """How many places after the leader the sender is in the list of trainers, at least 1."""
    places = [place for place, each in enumerate(state.terms.trainers) if each.operator == sender]
    if not places:
        raise LedgerRejected("not a trainer")
    require(places[0] != state.leader, "leads already")
    return (places[0] - state.leader) % len(state.terms.trainers)


def _close(state: RunState, closing_block: int, block: Block) -> int:
    """A time no later than the closing block's. Raises LedgerRejected when no epoch can have closed there."""
    require(state.closing_block < closing_block <= block.number, "closing block")
    until = [each for each in state.events.commits if each.block <= closing_block]
    new = [each for each in until if each.block > state.closing_block]
    ended = bool(until) and until[-1].final
    if new and (ended or len(new) >= state.terms.epoch_checkpoints):
        return new[-1].timestamp
    patience = state.terms.epoch_max_seconds
    if ended:
        patience = min(patience, state.terms.round_seconds)
    require(block.timestamp >= state.closed_at + patience, "epoch is open")
    return state.closed_at + patience
