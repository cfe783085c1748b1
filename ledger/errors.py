"""What can go wrong between a node and its ledger, by what the caller should do about it."""

from __future__ import annotations


class LedgerError(Exception):
    """Any failure of the ledger; the message is fit for a user."""


class LedgerUnavailable(LedgerError):
    """No RPC end-point answered in time. Transient: try again later, nothing was decided."""


class LedgerRejected(LedgerError):
    """The contract refused the call. Permanent for these arguments: never retried.

    `reason` is the contract's own short text, e.g. `"step"` or `"quorum"`; `was_paid`: gas went for learning it.
    """

    def __init__(self, reason: str, *, was_paid: bool = False) -> None:
        super().__init__(f"the ledger refused: {reason}")
        self.reason, self.was_paid = reason, was_paid


class LedgerMismatch(LedgerError):
    """RPC end-points disagree, or the contract is not the one the run names. Needs a person."""


class LowBalance(LedgerError):
    """The operator account cannot pay for gas and what is sent. Carries what it has and what it needs, in wei."""

    def __init__(self, address: str, balance: int, needed: int) -> None:
        super().__init__(f"{address} holds {balance} wei and needs {needed} wei, gas included")
        self.address = address
        self.balance = balance
        self.needed = needed


class WalletError(LedgerError):
    """A key file, password, address or signature is missing or wrong."""
