"""The part of a ledger that is the same on a chain and in memory: reading a run, attesting,
and sending calls idempotently."""

from ledger.base.money import MoneyCalls
from ledger.base.nodes import NodeCalls
from ledger.base.strikes import StrikeCalls
from ledger.base.training import TrainingCalls

__all__ = ["BaseLedger"]


class BaseLedger(NodeCalls, TrainingCalls, MoneyCalls, StrikeCalls):
    """A ledger for one run, with or without an operator key."""
