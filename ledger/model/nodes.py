"""Registrations, rotations and strikes of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledger.changes import Disputed, Lifted, Settled, Struck
from ledger.errors import LedgerRejected
from ledger.model.state import LastStrike, RunState, require
from ledger.records import ZERO_DIGEST, Attestation, Block, RegistrationRequest, RotationRequest, Strike
from ledger.registrations import MAX_NONCE, RegistrationEvent, RotationEvent
from ledger.rules import MAX_REASON
from ledger.signing import lift_typed_data, rotation_typed_data, strike_typed_data
from ledger.wallet import Domain, recover_typed_data, registration_typed_data

NODE_SIGNATURE_DIGITS = 128


def register(state: RunState, domain: Domain, request: RegistrationRequest, block: Block) -> None:
    """Emit a registration. Raises LedgerRejected."""
    node, wallet, nonce = request.node, request.wallet, request.nonce
    require(0 < nonce <= MAX_NONCE, "nonce")
    require(len(request.node_signature) == NODE_SIGNATURE_DIGITS, "node signature length")
    if wallet is None:
        require(request.wallet_signature == "", "signature without a wallet")
    else:
        require(request.claimed is None, "both linked and claimed")
        typed = registration_typed_data(domain, run=request.run, node=node, wallet=wallet, nonce=nonce)
        _use_nonce(state, (node, wallet), nonce, typed, request.wallet_signature)
    state.events.registrations.append(
        RegistrationEvent(node, wallet, request.claimed, nonce, request.node_signature, block.number)
    )


def rotate(state: RunState, domain: Domain, request: RotationRequest, block: Block) -> None:
    """Emit a rotation. Raises LedgerRejected."""
    old, new, wallet, nonce = request.old_node, request.new_node, request.wallet, request.nonce
    require(old != new, "node repeated")
    require(0 < nonce <= MAX_NONCE, "nonce")
    require(len(request.new_node_signature) == NODE_SIGNATURE_DIGITS, "node signature length")
    if wallet is None:
        require(request.wallet_signature == "", "signature without a wallet")
        require(len(request.old_node_signature) == NODE_SIGNATURE_DIGITS, "node signature length")
    else:
        require(request.old_node_signature == "", "both keys signed")
        typed = rotation_typed_data(domain, run=request.run, old_node=old, new_node=new, wallet=wallet, nonce=nonce)
        _use_nonce(state, (old, wallet), nonce, typed, request.wallet_signature)
    signatures = (request.old_node_signature, request.new_node_signature)
    state.events.registrations.append(RotationEvent(old, new, wallet, nonce, *signatures, block.number))


def strike(state: RunState, domain: Domain, made: Strike, attestations: Sequence[Attestation], block: Block) -> None:
    """Eject a node and freeze one of its stakes. Raises LedgerRejected."""
    last = state.strikes.get(made.node)
    require(last is None or not last.is_open, "strike is open")
    require(made.number == state.strike_count[made.node], "number")
    require(0 <= made.reason <= MAX_REASON, "reason")
    require(made.evidence != ZERO_DIGEST, "evidence is zero")
    attesters = state.attesters(strike_typed_data(domain, made), attestations)
    until = block.timestamp + state.terms.dispute_seconds
    state.strikes[made.node] = LastStrike(made.wallet, made.number, until)
    state.strike_count[made.node] += 1
    state.standing_strikes[made.node] += 1
    state.events.changes.append(
        Struck(
            node=made.node,
            wallet=made.wallet,
            number=made.number,
            reason=made.reason,
            evidence=made.evidence,
            until=until,
            attesters=attesters,
            block=block.number,
        )
    )


def dispute(state: RunState | None, node: str, counter_evidence: str, sender: str, block: Block) -> None:
    """Dispute a strike, once, within its window. Raises LedgerRejected."""
    state, held = _open_strike(state, node)
    require(sender == held.wallet, "not the wallet")
    require(not held.is_disputed, "disputed before")
    require(block.timestamp <= held.until, "window is over")
    require(counter_evidence != ZERO_DIGEST, "evidence is zero")
    held.is_disputed, held.until = True, held.until + state.terms.dispute_seconds
    state.events.changes.append(
        Disputed(node=node, number=held.number, counter_evidence=counter_evidence, until=held.until, block=block.number)
    )


def lift(
    state: RunState | None,
    domain: Domain,
    node: str,
    number: int,
    attestations: Sequence[Attestation],
    block: Block,
) -> None:
    """Lift an open strike. Raises LedgerRejected."""
    state, held = _open_strike(state, node)
    require(number == held.number, "number")
    typed = lift_typed_data(domain, run=state.terms.run, node=node, number=number)
    attesters = state.attesters(typed, attestations)
    held.is_open = False
    state.standing_strikes[node] -= 1
    state.events.changes.append(Lifted(node=node, number=number, attesters=attesters, block=block.number))


def settle(state: RunState | None, node: str, block: Block) -> None:
    """Close a strike whose window has passed; the stake goes to the run's funds. Raises LedgerRejected."""
    state, held = _open_strike(state, node)
    require(block.timestamp > held.until, "window is open")
    stake = state.stakes.get((node, held.wallet or ""))
    slashed = stake.amount if stake else 0
    state.credit(slashed)
    held.is_open = False
    state.stakes.pop((node, held.wallet or ""), None)
    state.events.changes.append(
        Settled(node=node, wallet=held.wallet, number=held.number, slashed=slashed, block=block.number)
    )


def _open_strike(state: RunState | None, node: str) -> tuple[RunState, LastStrike]:
    if state is None:
        raise LedgerRejected("no strike is open")
    return state, state.open_strike(node)


def _use_nonce(state: RunState, key: tuple[str, str], nonce: int, typed_data: dict[str, Any], signature: str) -> None:
    """Refuse a nonce older than the last, and any signature but the wallet's."""
    require(nonce >= state.nonces.get(key, 0), "nonce")
    require(recover_typed_data(typed_data, signature) == key[1], "wallet signature")
    state.nonces[key] = nonce
