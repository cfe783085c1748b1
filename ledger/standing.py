"""Folds a run's events into its state at a block: leader, validators, funds, stakes, strikes, payments.

Pure folds over the log; `until` None means all of it. Events that an end-point left out are not detected here; the log
itself says whether it is complete.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ledger.changes import (
    Change,
    Claimed,
    Disputed,
    Funded,
    LapseReported,
    Lifted,
    Paused,
    Reclaimed,
    Renewed,
    Settled,
    Staked,
    Struck,
    TakenOver,
    Unbonded,
    ValidatorsApplied,
    ValidatorsProposed,
    Withdrawn,
)
from ledger.errors import LedgerError
from ledger.records import (
    FIRST_TERM,
    Commit,
    HeldStrike,
    Lease,
    Role,
    RunTerms,
    Stake,
    Strike,
    ValidatorSet,
)


def up_to(changes: Iterable[Change], until: int | None) -> list[Change]:
    """Changes in blocks up to and including `until`."""
    return [each for each in changes if until is None or each.block <= until]


def lease_of(terms: RunTerms, commits: Sequence[Commit], changes: Iterable[Change], until: int | None = None) -> Lease:
    """The lease in force. Within one block a lapse comes first, then a take-over, then commits and renewals; the
    contract lets no other order matter."""
    lease = Lease(FIRST_TERM, terms.trainers[0].node, 0, 0)
    count = len(commits) if until is None else bisect.bisect_right(commits, until, key=lambda each: each.block)
    # Each commit overrides the effect of earlier ones on the lease, so only the last counts.
    events: list[Change | Commit] = [*commits[max(0, count - 1) : count]]
    events += [each for each in up_to(changes, until) if isinstance(each, Renewed | LapseReported | TakenOver)]
    for event in sorted(events, key=lambda each: (each.block, _rank(each))):
        lease = _next_lease(lease, terms, event)
    return lease


def validators_of(terms: RunTerms, changes: Iterable[Change], until: int | None = None) -> ValidatorSet:
    """The validator set in force."""
    held = ValidatorSet(0, terms.validators, terms.quorum, terms.created_block)
    for event in up_to(changes, until):
        if isinstance(event, ValidatorsApplied):
            held = ValidatorSet(event.number, event.validators, event.quorum, event.block)
    return held


def waiting_validators(changes: Iterable[Change]) -> ValidatorsProposed | None:
    """The announced set that is not in force yet."""
    waiting: ValidatorsProposed | None = None
    for event in changes:
        if isinstance(event, ValidatorsProposed):
            waiting = event
        elif isinstance(event, ValidatorsApplied):
            waiting = None
    return waiting


def funds_of(changes: Iterable[Change], until: int | None = None) -> int:
    """Base units funded and slashed, less what the owner reclaimed. Claims do not lower it,
    because roots are cumulative."""
    total = 0
    for event in up_to(changes, until):
        if isinstance(event, Funded):
            total += event.amount
        elif isinstance(event, Settled):
            total += event.slashed
        elif isinstance(event, Reclaimed):
            total -= event.amount
    return total


def stakes_of(changes: Iterable[Change], until: int | None = None) -> dict[tuple[str, str], Stake]:
    """Stakes that are not empty, by (node, wallet)."""
    held: dict[tuple[str, str], Stake] = {}
    for event in up_to(changes, until):
        if isinstance(event, Staked):
            before = held.get((event.node, event.wallet))
            total = event.amount + (before.amount if before else 0)
            held[(event.node, event.wallet)] = Stake(event.node, event.wallet, total, 0)
        elif isinstance(event, Unbonded):
            key = (event.node, event.wallet)
            if key in held:
                held[key] = replace(held[key], unbond_at=event.unbond_at)
        elif isinstance(event, Withdrawn | Settled) and event.wallet is not None:
            held.pop((event.node, event.wallet), None)
    return held


def strikes_of(run: str, changes: Iterable[Change], until: int | None = None) -> tuple[HeldStrike, ...]:
    """Every strike, in the order made."""
    held: dict[tuple[str, int], HeldStrike] = {}
    for event in up_to(changes, until):
        if isinstance(event, Struck):
            strike = Strike(run, event.node, event.wallet, event.number, event.reason, event.evidence)
            held[(event.node, event.number)] = HeldStrike(strike, event.block, event.until, event.attesters)
        elif isinstance(event, Disputed | Lifted | Settled):
            key = (event.node, event.number)
            if key in held:
                held[key] = _after(held[key], event)
    return tuple(held.values())


def paid_of(changes: Iterable[Change]) -> Counter[tuple[Role, str, str]]:
    """Base units paid, by (role, node, wallet)."""
    paid: Counter[tuple[Role, str, str]] = Counter()
    for event in changes:
        if isinstance(event, Claimed):
            paid[(event.role, event.node, event.wallet)] += event.paid
    return paid


def paused_of(changes: Iterable[Change]) -> bool:
    """Whether the owner has paused the run."""
    is_on = False
    for event in changes:
        if isinstance(event, Paused):
            is_on = event.on
    return is_on


def _rank(event: Change | Commit) -> int:
    if isinstance(event, LapseReported):
        return 0
    return 1 if isinstance(event, TakenOver) else 2


def _next_lease(lease: Lease, terms: RunTerms, event: Change | Commit) -> Lease:
    if isinstance(event, Commit):
        return replace(lease, until=event.timestamp + terms.lease_seconds, lapse_block=0)
    if isinstance(event, Renewed):
        return replace(lease, until=event.until, lapse_block=0)
    if isinstance(event, TakenOver):
        if event.leader >= len(terms.trainers):
            raise LedgerError("the RPC end-point sent a take-over by a trainer that the run does not have")
        return Lease(event.term, terms.trainers[event.leader].node, event.until, 0)
    return replace(lease, lapse_block=event.block)


def _after(held: HeldStrike, event: Disputed | Lifted | Settled) -> HeldStrike:
    if isinstance(event, Disputed):
        return replace(held, counter_evidence=event.counter_evidence, until=event.until)
    if isinstance(event, Lifted):
        return replace(held, outcome="lifted")
    return replace(held, outcome="settled", slashed=event.slashed)
