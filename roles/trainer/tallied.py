"""Whether the tally that closes a run is final."""

from __future__ import annotations

from ledger.errors import LedgerError
from ledger.records import Commit
from roles.ports import Ledger


async def is_tallied(ledger: Ledger, commit: Commit) -> bool:
    """Whether a final root closes at or after this commit's block. False while the ledger does not answer."""
    try:
        roots = await ledger.final_roots()
    except LedgerError:
        return False
    return any(root.closing_block >= commit.block for root in roots)
