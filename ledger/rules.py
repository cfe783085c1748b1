"""Rules that readers of the registry share: which registration is in force, and where an epoch closes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ledger.errors import LedgerError
from ledger.records import Block, Commit, FinalRoot, Proposal, Registration, RunTerms
from ledger.wallet import Domain, check_node_signature, registration_message

MAX_NONCE = 2**64 - 1
MAX_STEP = 2**40 - 1
MAX_TOTAL = 2**128 - 1


@dataclass(frozen=True, slots=True)
class RegistrationEvent:
    """A registration as emitted: the contract checked the wallet's signature, nobody yet the node's."""

    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    node_signature: str
    block: int


class ChainView(Protocol):
    """What finding a closing block reads."""

    async def terms(self) -> RunTerms: ...
    async def head(self) -> Block: ...
    async def block(self, number: int) -> Block | None: ...
    async def commits(self, from_step: int = 0) -> Sequence[Commit]: ...
    async def final_roots(self) -> Sequence[FinalRoot]: ...


def is_signed_by_node(event: RegistrationEvent, *, domain: Domain, run: str) -> bool:
    """Whether the node itself signed the registration."""
    message = registration_message(
        domain, run=run, node=event.node, wallet=event.wallet, claimed=event.claimed, nonce=event.nonce
    )
    return check_node_signature(event.node, message, event.node_signature)


def fold_registrations(events: Iterable[RegistrationEvent]) -> dict[str, Registration]:
    """Registrations in force, by node, from valid events in chain order.

    The highest nonce wins; of equal ones the first. The first block never moves.
    """
    held: dict[str, Registration] = {}
    for event in events:
        before = held.get(event.node)
        if before is not None and event.nonce <= before.nonce:
            continue
        first = before.first_block if before else event.block
        held[event.node] = Registration(event.node, event.wallet, event.claimed, event.nonce, first, event.block)
    return held


async def find_closing_block(view: ChainView, after: int | None = None) -> Block | None:
    """Where the epoch that begins after block `after` (default: the last final root's) closes; None while open.

    It closes at the first block with `epoch_checkpoints` more checkpoints, or with the final one, or whose time is
    `epoch_max_seconds` later. Once the run has ended only verdicts are waited for: `round_seconds` suffice.
    An epoch in which nobody earned is not written: ask again with `after` its closing block.
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
    return (root.root, root.total, root.blob, root.closing_block) == (
        proposal.root,
        proposal.total,
        proposal.blob,
        proposal.closing_block,
    )


def is_committed(commits: Sequence[Commit], wanted: Commit) -> bool:
    """Whether exactly this checkpoint is already committed, in whatever block."""
    return any(replace(each, block=wanted.block, timestamp=wanted.timestamp) == wanted for each in commits)


def check_digest(text: str) -> bytes:
    """The 32 bytes of a digest. Raises LedgerError for anything but 64 lower-case hex digits."""
    if len(text) != 64 or text != text.lower():
        raise LedgerError(f"not a digest: {text[:70]!r}")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise LedgerError(f"not a digest: {text!r}") from error


def check_proposal(proposal: Proposal) -> None:
    """Refuse a proposal no contract could take. Raises LedgerError: it may come from a stranger."""
    for text in (proposal.run, proposal.parent_root, proposal.root, proposal.blob):
        check_digest(text)
    small = (proposal.epoch, proposal.round, proposal.closing_block)
    if not all(0 <= number <= MAX_STEP for number in small) or not 0 <= proposal.total <= MAX_TOTAL:
        raise LedgerError("a number of the tally is out of range")


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
    """First block of low..high whose time is `timestamp` or later; None when one cannot be read."""
    while low < high:
        middle = (low + high) // 2
        block = await view.block(middle)
        if block is None:
            return None
        low, high = (low, middle) if block.timestamp >= timestamp else (middle + 1, high)
    return await view.block(low)
