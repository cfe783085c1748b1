"""The registry contract's rules in Python, reason for reason: what `MemoryLedger` runs and the contract is tested by."""

from ledger.model.registry import RegistryModel
from ledger.model.state import RunState

__all__ = ["RegistryModel", "RunState"]
