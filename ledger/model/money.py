"""Funds, claims and stakes. Functions that pay return the amount paid."""

from __future__ import annotations

from dataclasses import replace

from ledger.changes import Claimed, Funded, Reclaimed, Staked, Unbonded, Withdrawn
from ledger.errors import LedgerRejected
from ledger.merkle import MerkleProof, verify_proof
from ledger.model.state import ABANDONED_SECONDS, RunState, require
from ledger.records import Block, Leaf, Stake
from ledger.rules import MAX_TOTAL
from ledger.wallet import NO_ADDRESS


def fund(state: RunState, amount: int, sender: str, block: Block) -> None:
    """Add to a run's rewards. Raises LedgerRejected."""
    require(amount > 0, "amount is zero")
    state.credit(amount)
    state.events.changes.append(Funded(sender=sender, amount=amount, block=block.number))


def reclaim(state: RunState, to: str, sender: str, block: Block) -> int:
    """Return to the owner what no root has promised. Raises LedgerRejected."""
    require(sender == state.terms.owner, "not the owner")
    require(to != NO_ADDRESS, "receiver is zero")
    patience = state.terms.unbond_seconds + (0 if state.has_ended else ABANDONED_SECONDS)
    require(block.timestamp >= state.active_at + patience, "run is not over")
    amount = state.funds - state.promised
    require(amount > 0, "nothing to pay")
    state.funds -= amount
    state.events.changes.append(Reclaimed(to=to, amount=amount, block=block.number))
    return amount


def claim(state: RunState, epoch: int, leaf: Leaf, proof: MerkleProof, block: Block) -> int:
    """Pay a leaf's wallet what a final root grants it and has not been paid yet. Raises LedgerRejected."""
    require(0 <= epoch < len(state.events.roots), "epoch")
    if leaf.wallet is None:
        raise LedgerRejected("leaf has no wallet")
    require(verify_proof(state.events.roots[epoch].root, leaf, proof), "proof")
    key = (leaf.role, leaf.node, leaf.wallet)
    due = leaf.amount - state.paid_of[key]
    require(due > 0, "nothing to pay")
    require(state.paid + due <= state.promised, "root is overdrawn")
    state.paid_of[key] = leaf.amount
    state.paid += due
    state.events.changes.append(
        Claimed(node=leaf.node, wallet=leaf.wallet, role=leaf.role, amount=leaf.amount, paid=due, block=block.number)
    )
    return due


def stake(state: RunState, owner: tuple[str, str], amount: int, sender: str, block: Block) -> None:
    """Stake a wallet's coins on a node; `owner` is (node, wallet). Raises LedgerRejected."""
    node, wallet = owner
    require(wallet != NO_ADDRESS, "wallet is zero")
    require(state.standing_strikes[node] == 0, "node is struck")
    held = state.stakes.get(owner) or Stake(node, wallet, 0, 0)
    require(held.unbond_at == 0 or sender == wallet, "unbonding")
    require(amount > 0, "amount is zero")
    total = held.amount + amount
    require(total >= state.terms.min_stake, "below the minimum stake")
    require(total <= MAX_TOTAL, "too much")
    state.stakes[owner] = Stake(node, wallet, total, 0)
    state.events.changes.append(Staked(node=node, wallet=wallet, sender=sender, amount=amount, block=block.number))


def unbond(state: RunState | None, owner: tuple[str, str], block: Block) -> None:
    """Begin to unbond a stake. Raises LedgerRejected."""
    state, held = _held(state, owner)
    require(held.unbond_at == 0, "unbonding")
    unbond_at = block.timestamp + state.terms.unbond_seconds
    state.stakes[owner] = replace(held, unbond_at=unbond_at)
    state.events.changes.append(Unbonded(node=held.node, wallet=held.wallet, unbond_at=unbond_at, block=block.number))


def withdraw(state: RunState | None, owner: tuple[str, str], block: Block) -> int:
    """Pay out an unbonded stake. Raises LedgerRejected."""
    state, held = _held(state, owner)
    require(0 < held.unbond_at <= block.timestamp, "bonded")
    strike = state.strikes.get(held.node)
    require(strike is None or not strike.is_open or strike.wallet != held.wallet, "stake is frozen")
    del state.stakes[owner]
    state.events.changes.append(Withdrawn(node=held.node, wallet=held.wallet, amount=held.amount, block=block.number))
    return held.amount


def _held(state: RunState | None, owner: tuple[str, str]) -> tuple[RunState, Stake]:
    held = state.stakes.get(owner) if state else None
    if state is None or held is None:
        raise LedgerRejected("no stake")
    return state, held
