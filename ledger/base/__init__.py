"""What every ledger does the same way, on a chain or in memory: show a run, attest, and send so that repeating is
harmless."""

from ledger.base.money import MoneyCalls
from ledger.base.nodes import NodeCalls, RegistrationMessages
from ledger.base.strikes import StrikeCalls
from ledger.base.training import TrainingCalls

__all__ = ["BaseLedger", "RegistrationMessages"]


class BaseLedger(NodeCalls, TrainingCalls, MoneyCalls, StrikeCalls):
    """A ledger for one run, seen with or without an operator key."""
