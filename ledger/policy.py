"""How cautious a node is with its chain: how deep a block must be, and what a transaction may cost."""

from __future__ import annotations

from dataclasses import dataclass

GWEI = 10**9


@dataclass(frozen=True, slots=True)
class ChainPolicy:
    """`confirmations` is the number of blocks, its own included, that a block needs before a node acts on it; 1 trusts
    the newest. `max_fee` caps what a transaction offers, in wei per gas; 0 means no cap."""

    confirmations: int = 1
    max_fee: int = 0

    def __post_init__(self) -> None:
        if self.confirmations < 1 or self.max_fee < 0:
            raise ValueError("at least one confirmation, and no negative fee")


DEFAULT_POLICY = ChainPolicy()
