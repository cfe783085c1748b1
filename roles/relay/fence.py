"""Fencing: a relay neither accepts nor spreads checkpoints of a leader whose lease was taken over."""

from __future__ import annotations

from typing import Protocol

from dht.errors import PeerError
from dht.identity import NodeId
from roles.rules import Ignore, Reject
from roles.shardcast.catalogue import KeptCheckpoint, Parcel


class TermRule(Protocol):
    """`TrustedState.check_checkpoint`: raises Reject for a fenced leader's, Ignore for a term not seen yet."""

    def __call__(self, *, signer: NodeId, term: int, step: int, manifest: str) -> None: ...


class FencedLeader(PeerError):
    """The checkpoint is from a leader that lost its lease, or is not the committed one of its step."""


def no_terms(*, signer: NodeId, term: int, step: int, manifest: str) -> None:
    """The rule of a relay without a ledger: everything a trainer signed may be spread."""


class Fence:
    """Applies the rule. A term not seen yet passes: our view of the ledger may lag, and every loader checks again."""

    def __init__(self, rule: TermRule) -> None:
        self._rule = rule

    def check(self, *, signer: NodeId, term: int, step: int, manifest: str) -> None:
        """Raises FencedLeader when the rule rejects the checkpoint."""
        try:
            self._rule(signer=signer, term=term, step=step, manifest=manifest)
        except Ignore:
            return
        except Reject as refused:
            raise FencedLeader(str(refused)) from refused

    def check_parcel(self, kept: Parcel) -> Parcel:
        """As `check`, for a manifest or a delta to one. Raises FencedLeader."""
        term, step, _ = kept.age_rank
        manifest = kept.digest if isinstance(kept, KeptCheckpoint) else kept.delta.target
        self.check(signer=kept.signer, term=term, step=step, manifest=manifest)
        return kept
