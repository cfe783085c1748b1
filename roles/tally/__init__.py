"""The tally of an epoch: who provably contributed what, and what it is paid. Pure.

A blob contains the full signed rows (submissions, the verdicts on each, relay receipts), so anyone can check it with
the ledger's facts alone. Expiry of those rows is not checked, because they were in time when they were judged.
"""

from roles.tally.body import (
    MAX_BLOB,
    MAX_BODY,
    MAX_ITEMS,
    TallyBody,
    TallyItem,
    TallyLeaf,
    open_final_tally,
    open_tally,
    plain_leaves,
    proposal_of,
)
from roles.tally.building import build_tally
from roles.tally.checking import check_tally, open_proposed
from roles.tally.context import TallyContext, oldest_block
from roles.tally.faults import TallyFault, TallyRefused
from roles.tally.items import Contribution, check_item, check_refusal, pack_item, place_digest, refusal_digest
from roles.tally.omissions import is_much, omitted_tokens
from roles.tally.pending import pending_contributions, sort_rows
from roles.tally.reading import read_context
from roles.tally.receipts import open_receipt, receipt_place

__all__ = [
    "MAX_BLOB",
    "MAX_BODY",
    "MAX_ITEMS",
    "Contribution",
    "TallyBody",
    "TallyContext",
    "TallyFault",
    "TallyItem",
    "TallyLeaf",
    "TallyRefused",
    "build_tally",
    "check_item",
    "check_refusal",
    "check_tally",
    "is_much",
    "oldest_block",
    "omitted_tokens",
    "open_final_tally",
    "open_proposed",
    "open_receipt",
    "open_tally",
    "pack_item",
    "pending_contributions",
    "place_digest",
    "plain_leaves",
    "proposal_of",
    "read_context",
    "receipt_place",
    "refusal_digest",
    "sort_rows",
]
