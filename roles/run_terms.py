"""The terms that the ledger is given when a run is created, and must show ever after, since anyone may have registered
its id first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.records import NewRun, Operator, RunTerms
from ledger.wallet import checked_address
from roles.spec import OperatorSpec, RunSpec


def terms_of(spec: RunSpec) -> NewRun:
    """The terms from the spec: operators in order with their keys and payout addresses, and the parameters."""
    return NewRun(
        run=spec.run_id,
        validators=operators_of(spec.validators),
        trainers=operators_of(spec.trainers),
        quorum=spec.quorum,
        epoch_checkpoints=spec.epoch.checkpoints,
        epoch_max_seconds=spec.epoch.max_seconds,
        round_seconds=spec.epoch.round_seconds,
        lease_seconds=spec.terms.lease_seconds,
        takeover_blocks=spec.terms.takeover_blocks,
        unbond_seconds=spec.terms.unbond_seconds,
        dispute_seconds=spec.terms.dispute_seconds,
        change_seconds=spec.terms.change_seconds,
        min_stake=int(spec.rewards.min_stake),
        epoch_budget=int(spec.rewards.budget),
        token=checked_address(spec.rewards.token) if spec.rewards.token else None,
    )


def operators_of(items: Sequence[OperatorSpec]) -> tuple[Operator, ...]:
    """The spec's operators as the ledger's records."""
    return tuple(Operator(item.node, checked_address(item.operator), checked_address(item.payout)) for item in items)


def differing_terms(terms: RunTerms, wanted: NewRun) -> list[str]:
    """Names of the terms in which the ledger's run differs from the one wanted; empty when it is the same."""
    return [name for name, value in wanted.items() if getattr(terms, name) != value]
