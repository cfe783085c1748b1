"""The registry contract's rules in Python, with the same revert reasons. `MemoryLedger` runs on it, and the
contract is tested against it."""

from ledger.model.registry import RegistryModel
from ledger.model.state import RunState

__all__ = ["RegistryModel", "RunState"]
