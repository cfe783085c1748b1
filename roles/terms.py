"""What each trainer may sign in which term: the rules that fence a leader whose lease was taken over. Pure.

A term is one trainer's time as the leader, counted by the ledger. Nodes that read the ledger refuse heads of earlier
terms, and checkpoints that an earlier leader made beyond what it had committed when it lost the lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledger.records import FIRST_TERM, Commit, Lease, Operator
from roles.rules import Ignore, Reason, Reject


def lease_of(lease: Lease | None, trainers: Sequence[Operator]) -> Lease:
    """The latest known lease. Before any is known, the first trainer leads the first term."""
    return lease or Lease(FIRST_TERM, trainers[0].node, 0, 0)


def check_term(*, signer: str, term: int, lease: Lease, trainers: Sequence[Operator]) -> None:
    """Check that the signer leads this term. Raises Reject, or Ignore for a term the ledger has not shown yet."""
    # [REJECT] not signed by a trainer
    if not any(item.node == signer for item in trainers):
        raise Reject(Reason.NOT_THE_LEADER)
    # [IGNORE] somebody took over, and our view of the ledger lags behind
    if term > lease.term:
        raise Ignore(Reason.TERM_UNKNOWN, f"term {term}, the ledger shows {lease.term}")
    # [REJECT] signed by a fenced leader
    if term < lease.term:
        raise Reject(Reason.OLD_TERM, f"term {term}, the ledger shows {lease.term}")
    # [REJECT] a term has one leader
    if signer != lease.leader:
        raise Reject(Reason.NOT_THE_LEADER)


def check_checkpoint(
    *,
    signer: str,
    term: int,
    step: int,
    manifest: str,
    commits: Mapping[int, Commit],
    lease: Lease,
    trainers: Sequence[Operator],
) -> None:
    """Check that a checkpoint may be spread: it is the committed one of its step, or the current
    leader's. Raises Reject, Ignore."""
    committed = commits.get(step)
    if committed is None:
        check_term(signer=signer, term=term, lease=lease, trainers=trainers)
    # [REJECT] each step has one checkpoint, whatever a leader made before it was fenced
    elif committed.manifest != manifest:
        raise Reject(Reason.OLD_TERM, f"another checkpoint {step} is committed")


def distance(node: str, *, leader: str, trainers: Sequence[Operator]) -> int:
    """How many places after the leader a trainer comes, in the spec's order and wrapping around: 1 is next in line.

    Trainers A, B, C and leader B: C -> 1, A -> 2. Raises ValueError for a node that is not a trainer.
    """
    order = [item.node for item in trainers]
    return (order.index(node) - order.index(leader)) % len(order)
