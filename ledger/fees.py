"""The gas price a transaction offers: EIP-1559 only, never above the cap."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.answers import base_fee, fee
from ledger.errors import LedgerUnavailable
from ledger.json_rpc import RpcError
from ledger.policy import GWEI
from ledger.rpc import Caller

FEE_BUMP = (5, 4)
"""Ratio of a raised fee to the old one. Nodes accept a replacement from 10% more."""


@dataclass(frozen=True, slots=True)
class Fees:
    """Priority fee, and the maximum total fee, in wei per gas."""

    priority: int
    maximum: int


async def read_fees(rpc: Caller, *, cap: int) -> Fees:
    """The fees to offer now: the usual priority fee, and a maximum that lets the base fee double.

    Raises LedgerUnavailable while the base fee alone is above `cap` (0: no cap).
    """
    burnt = base_fee(await rpc.call("eth_getBlockByNumber", "latest", False))
    try:
        priority = fee(await rpc.call("eth_maxPriorityFeePerGas"))
    except RpcError:  # not every end-point supports this method
        priority = max(1, fee(await rpc.call("eth_gasPrice")) - burnt)
    if cap and burnt >= cap:
        raise LedgerUnavailable(
            f"gas costs {burnt / GWEI:.3g} gwei now, and the cap is {cap / GWEI:.3g}: wait, or raise max_fee_gwei"
        )
    return _capped(Fees(priority, 2 * burnt + priority), cap)


def raised_fees(fees: Fees, *, cap: int) -> Fees | None:
    """Higher fees for a transaction that is not included; None when the cap does not allow any."""
    priority, maximum = (value * FEE_BUMP[0] // FEE_BUMP[1] + 1 for value in (fees.priority, fees.maximum))
    return None if cap and maximum > cap else Fees(priority, maximum)


def _capped(fees: Fees, cap: int) -> Fees:
    if not cap:
        return fees
    maximum = min(fees.maximum, cap)
    return Fees(min(fees.priority, maximum), maximum)
