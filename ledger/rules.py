"""Rules that readers of the registry share: which registration is in force, and where an epoch closes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ledger.errors import LedgerError
from ledger.records import Block, Commit, FinalRoot, Proposal, Registration, RunTerms, Strike
from ledger.signing import rotation_message
from ledger.wallet import (
    Domain,
    check_node_signature,
    checked_address,
    public_key_from_node,
    registration_message,
)

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_NONCE = 2**64 - 1
MAX_STEP = 2**40 - 1
MAX_TOTAL = 2**128 - 1
MAX_REASON = 2**16 - 1


@dataclass(frozen=True, slots=True)
class RegistrationEvent:
    """A registration as emitted: the contract checked the wallet's signature, nobody yet the node's."""

    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    node_signature: str
    block: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class RotationEvent:
    """A rotation as emitted: the contract checked the wallet's signature where there is one, nobody yet the nodes'."""

    old_node: str
    new_node: str
    wallet: str | None
    nonce: int
    old_node_signature: str
    new_node_signature: str
    block: int
    index: int = 0


NodeEvent = RegistrationEvent | RotationEvent
_Links = defaultdict[str, list[tuple[int, str | None]]]


class ChainView(Protocol):
    """The part of a ledger that `find_closing_block` reads."""

    async def terms(self) -> RunTerms: ...
    async def head(self) -> Block: ...
    async def block(self, number: int) -> Block | None: ...
    async def commits(self, from_step: int = 0) -> Sequence[Commit]: ...
    async def final_roots(self) -> Sequence[FinalRoot]: ...


def is_signed_by_node(event: NodeEvent, *, domain: Domain, run: str) -> bool:
    """Whether the node keys that must have signed a registration or rotation did."""
    if isinstance(event, RotationEvent):
        return _is_rotation_signed(event, domain=domain, run=run)
    message = registration_message(
        domain, run=run, node=event.node, wallet=event.wallet, claimed=event.claimed, nonce=event.nonce
    )
    return check_node_signature(event.node, message, event.node_signature)


def _is_rotation_signed(event: RotationEvent, *, domain: Domain, run: str) -> bool:
    message = rotation_message(
        domain, run=run, old_node=event.old_node, new_node=event.new_node, wallet=event.wallet, nonce=event.nonce
    )
    if event.wallet is None and not check_node_signature(event.old_node, message, event.old_node_signature):
        return False
    return check_node_signature(event.new_node, message, event.new_node_signature)


def fold_registrations(events: Iterable[NodeEvent]) -> dict[str, Registration]:
    """Registrations in force, by node, from events in chain order whose node signatures hold.

    The highest nonce wins; of equal ones the first. The first block never moves. A rotation by the wallet in force, or
    by the old key, moves all that to a key that was never registered; the old key never counts again.
    """
    held: dict[str, Registration] = {}
    retired: set[str] = set()
    links: _Links = defaultdict(list)
    for event in events:
        if isinstance(event, RotationEvent):
            _rotate(held, retired, links, event)
        elif event.node not in retired:
            _register(held, links, event)
    return {node: replace(item, links=tuple(links[node])) for node, item in held.items()}


def _register(held: dict[str, Registration], links: _Links, event: RegistrationEvent) -> None:
    before = held.get(event.node)
    if before is not None and event.nonce <= before.nonce:
        return
    first = before.first_block if before else event.block
    previous = before.previous if before else ()
    held[event.node] = Registration(event.node, event.wallet, event.claimed, event.nonce, first, event.block, previous)
    if before is None or event.wallet != before.wallet:
        links[event.node].append((event.block, event.wallet))


def _rotate(held: dict[str, Registration], retired: set[str], links: _Links, event: RotationEvent) -> None:
    old = held.get(event.old_node)
    if old is None or event.new_node in held or event.new_node in retired:
        return
    # Any wallet can sign for any node; only the one in force counts.
    if event.wallet is not None and event.wallet != old.wallet:
        return
    del held[event.old_node]
    retired.add(event.old_node)
    links[event.new_node] = links.pop(event.old_node)
    # Nonce 0: whatever the new key signs next wins.
    held[event.new_node] = replace(
        old, node=event.new_node, nonce=0, block=event.block, previous=(*old.previous, old.node)
    )


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
    return (root.root, root.total, root.amount, root.blob, root.closing_block) == (
        proposal.root,
        proposal.total,
        proposal.amount,
        proposal.blob,
        proposal.closing_block,
    )


def is_committed(commits: Sequence[Commit], wanted: Commit) -> bool:
    """Whether exactly this checkpoint is already committed, in whatever block."""
    return any(replace(each, block=wanted.block, timestamp=wanted.timestamp) == wanted for each in commits)


def check_digest(text: str) -> bytes:
    """The 32 bytes of a digest. Raises LedgerError for anything but 64 lower-case hex digits."""
    if not DIGEST.fullmatch(text):  # `fromhex` alone skips spaces
        raise LedgerError(f"not a digest: {text[:70]!r}")
    return bytes.fromhex(text)


def check_proposal(proposal: Proposal) -> None:
    """Refuse a proposal no contract could take. Raises LedgerError: it may come from a stranger."""
    for text in (proposal.run, proposal.parent_root, proposal.root, proposal.blob):
        check_digest(text)
    small = (proposal.epoch, proposal.round, proposal.closing_block)
    large = (proposal.total, proposal.amount)
    if not all(0 <= each <= MAX_STEP for each in small) or not all(0 <= each <= MAX_TOTAL for each in large):
        raise LedgerError("a number of the tally is out of range")


def check_strike(strike: Strike) -> None:
    """Refuse a strike no contract could take. Raises LedgerError: it may come from a stranger."""
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
    """First block of low..high whose time is `timestamp` or later; None when one cannot be read."""
    while low < high:
        middle = (low + high) // 2
        block = await view.block(middle)
        if block is None:
            return None
        low, high = (low, middle) if block.timestamp >= timestamp else (middle + 1, high)
    return await view.block(low)
