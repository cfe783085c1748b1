"""Conversion between attestations and rows."""

from __future__ import annotations

from ledger.records import Attestation, Proposal
from roles.messages import TallyRow


def proposal_from(row: TallyRow) -> Proposal:
    """The proposal that a tally row attests."""
    return Proposal(
        run=row.run,
        epoch=row.epoch,
        round=row.round,
        closing_block=row.closing_block,
        parent_root=row.parent_root,
        root=row.root,
        total=row.total,
        amount=row.amount,
        blob=row.blob,
    )


def row_from(proposal: Proposal, attestation: Attestation, *, size: int) -> TallyRow:
    """The message that carries an attestation; `size` is that of the blob, in bytes."""
    return TallyRow(
        run=proposal.run,
        epoch=proposal.epoch,
        round=proposal.round,
        closing_block=proposal.closing_block,
        parent_root=proposal.parent_root,
        root=proposal.root,
        total=proposal.total,
        amount=proposal.amount,
        blob=proposal.blob,
        size=size,
        operator=attestation.operator,
        signature=attestation.signature,
    )
