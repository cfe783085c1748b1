"""Errors between a node and its ledger, classified by what the caller should do."""

from __future__ import annotations


class LedgerError(Exception):
    """Any failure of the ledger. The message is fit for a user."""


class LedgerUnavailable(LedgerError):
    """No RPC end-point answered in time. Transient: nothing was decided, try again later."""


class LedgerRejected(LedgerError):
    """The contract refused the call. Permanent for these arguments: never retried.

    `reason` is the contract's own short text, e.g. `"step"` or `"quorum"`. `was_paid`: gas
    was spent on the refused call.
    """

    def __init__(self, reason: str, *, was_paid: bool = False) -> None:
        super().__init__(f"the ledger refused: {reason}")
        self.reason, self.was_paid = reason, was_paid


class LedgerMismatch(LedgerError):
    """RPC end-points disagree, or the contract is not the one the run names. Needs a person to resolve."""


class LowBalance(LedgerError):
    """The operator account cannot pay for gas and the value sent. Carries the balance and the amount needed, in wei."""

    def __init__(self, address: str, balance: int, needed: int) -> None:
        super().__init__(f"{address} holds {balance} wei and needs {needed} wei, gas included")
        self.address = address
        self.balance = balance
        self.needed = needed


class WalletError(LedgerError):
    """A key file, password, address or signature is missing or wrong."""
