"""Rules that readers of the registry share: which records it could accept, and where an epoch closes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ledger.errors import LedgerError
from ledger.records import Block, Commit, FinalRoot, Proposal, RunTerms, Strike
from ledger.wallet import (
    checked_address,
    public_key_from_node,
)

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_STEP = 2**40 - 1
MAX_TOTAL = 2**128 - 1
MAX_REASON = 2**16 - 1


class ChainView(Protocol):
    """The part of a ledger that `find_closing_block` reads."""

    async def terms(self) -> RunTerms: ...
    async def head(self) -> Block: ...
    async def block(self, number: int) -> Block | None: ...
    async def commits(self, from_step: int = 0) -> Sequence[Commit]: ...
    async def final_roots(self) -> Sequence[FinalRoot]: ...


async def find_closing_block(view: ChainView, after: int | None = None) -> Block | None:
    """The block at which the epoch that begins after block `after` (default: the last final root's)
    closes; None while it is open.

    It closes at the first block with `epoch_checkpoints` more checkpoints, or with the final one, or whose time is
    `epoch_max_seconds` later. Once the run has ended only verdicts are outstanding, and `round_seconds` suffice. No
    root is written for an epoch in which nobody earned: call again with its closing block as `after`.
    """
    terms, commits, head = await view.terms(), await view.commits(), await view.head()
    if after is None:
        roots = await view.final_roots()
        after = roots[-1].closing_block if roots else terms.created_block
    opened = await view.block(after)
    if opened is None:
        return None
    by_step = _closing_commit([commit for commit in commits if commit.block > after], terms.epoch_checkpoints)
    deadline = opened.timestamp + _patience(terms, commits, after)
    if by_step is not None and by_step.timestamp <= deadline:
        return await view.block(by_step.block)
    if head.timestamp < deadline:
        return None
    return await _first_block_at(view, deadline, low=after + 1, high=head.number)


def is_settled(proposal: Proposal, roots: Sequence[FinalRoot]) -> bool:
    """Whether exactly this proposal is already final."""
    if proposal.epoch >= len(roots):
        return False
    root = roots[proposal.epoch]
    return (root.root, root.total, root.amount, root.blob, root.closing_block) == (
        proposal.root,
        proposal.total,
        proposal.amount,
        proposal.blob,
        proposal.closing_block,
    )


def is_committed(commits: Sequence[Commit], wanted: Commit) -> bool:
    """Whether exactly this checkpoint is already committed, in any block."""
    return any(replace(each, block=wanted.block, timestamp=wanted.timestamp) == wanted for each in commits)


def check_digest(text: str) -> bytes:
    """The 32 bytes of a digest. Raises LedgerError for anything but 64 lower-case hex digits."""
    if not DIGEST.fullmatch(text):  # `fromhex` alone would skip spaces
        raise LedgerError(f"not a digest: {text[:70]!r}")
    return bytes.fromhex(text)


def check_proposal(proposal: Proposal) -> None:
    """Refuse a proposal that no contract could accept. Raises LedgerError: it may come from a stranger."""
    for text in (proposal.run, proposal.parent_root, proposal.root, proposal.blob):
        check_digest(text)
    small = (proposal.epoch, proposal.round, proposal.closing_block)
    large = (proposal.total, proposal.amount)
    if not all(0 <= each <= MAX_STEP for each in small) or not all(0 <= each <= MAX_TOTAL for each in large):
        raise LedgerError("a number of the tally is out of range")


def check_strike(strike: Strike) -> None:
    """Refuse a strike that no contract could accept. Raises LedgerError: it may come from a stranger."""
    check_digest(strike.run)
    check_digest(strike.evidence)
    public_key_from_node(strike.node)
    if strike.wallet is not None:
        checked_address(strike.wallet)
    if not 0 <= strike.number <= MAX_STEP or not 0 <= strike.reason <= MAX_REASON:
        raise LedgerError("a number of the strike is out of range")


def _closing_commit(later: Sequence[Commit], wanted: int) -> Commit | None:
    for count, commit in enumerate(later, start=1):
        if commit.final or count == wanted:
            return commit
    return None


def _patience(terms: RunTerms, commits: Sequence[Commit], after: int) -> int:
    if commits and commits[-1].final and commits[-1].block <= after:
        return min(terms.epoch_max_seconds, terms.round_seconds)
    return terms.epoch_max_seconds


async def _first_block_at(view: ChainView, timestamp: int, *, low: int, high: int) -> Block | None:
    """First block in low..high whose time is `timestamp` or later; None when one cannot be read."""
    while low < high:
        middle = (low + high) // 2
        block = await view.block(middle)
        if block is None:
            return None
        low, high = (low, middle) if block.timestamp >= timestamp else (middle + 1, high)
    return await view.block(low)
