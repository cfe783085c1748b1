"""Amounts of coins in the form people type and read. The ledger uses base units, the
terminal decimals of a coin. Pure."""

from __future__ import annotations

import re
from decimal import ROUND_DOWN, Decimal

from node.errors import UsageError

_AMOUNT = re.compile(r"^(\d{1,39})(?:\.(\d{1,18}))?\s*(wei|gwei|eth|coins?)?$", re.IGNORECASE)
_DIGITS = {"wei": 0, "gwei": 9, "eth": 18, "coin": 18, "coins": 18}
MAX_AMOUNT = 2**128 - 1
DIGITS_SHOWN = 6
LONGEST_SHOWN = 40


def parse_amount(text: str) -> int:
    """Parse base units: `1500`, or with a unit `0.5eth`, `3 gwei`. Raises UsageError for anything
    else, including an empty text."""
    found = _AMOUNT.match(text.strip())
    if found is None:
        raise UsageError(f"{_shown(text)} is not an amount: give base units (1500), or a unit (0.5eth, 3gwei)")
    whole, fraction, unit = found[1], found[2] or "", (found[3] or "").lower()
    if fraction and not unit:
        raise UsageError(f"{_shown(text)} has a fraction and no unit: base units are whole (0.5eth is meant?)")
    digits = _DIGITS.get(unit, 0)
    if len(fraction) > digits:
        raise UsageError(f"{_shown(text)} is finer than a base unit")
    amount = int(whole + fraction.ljust(digits, "0"))
    if not 0 < amount <= MAX_AMOUNT:
        raise UsageError(f"{_shown(text)}: more than nothing is meant, and less than 2^128 base units")
    return amount


def _shown(text: str) -> str:
    """The text as typed; of a very long one, only both ends, which include the unit."""
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:20]}..{text[-10:]}")


def show_briefly(amount: int, token: str | None = None) -> str:
    """An amount for a table column: the chain's coin in six digits, rounded down so as not to
    promise too much: `0.146649 eth`."""
    if token is not None or 0 <= amount < 10**9:
        return show_amount(amount, token)
    coins = Decimal(amount) / 10**18
    digits = max(0, DIGITS_SHOWN - 1 - coins.adjusted())
    return f"{coins.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN).normalize():f} eth"


def show_amount(amount: int, token: str | None = None) -> str:
    """`1500 base units of 0x..` for a token; for the chain's coin the most readable
    unit: `0.0000015 eth`, `1500 wei`."""
    if token is not None:
        return f"{amount} base units of {token}"
    if 0 < amount < 10**9:
        return f"{amount} wei"
    return f"{(Decimal(amount) / 10**18).normalize():f} eth"


def show_rewards(budget: int, min_stake: int, token: str | None) -> str:
    """What a run pays, and the stake it requires of wallets: `1 eth an epoch; a stake of 0.1 eth is asked`."""
    pay = f"{show_amount(budget, token)} an epoch" if budget else "units only, nothing is paid"
    return f"{pay}; a stake of {show_amount(min_stake, token)} is asked" if min_stake else pay
