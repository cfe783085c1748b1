"""Coins: rewards are funded, claimed and reclaimed; stakes are deposited and withdrawn."""

from __future__ import annotations

from ledger.base.sending import LedgerSending
from ledger.merkle import MerkleProof
from ledger.records import Leaf
from ledger.wallet import checked_address


class MoneyCalls(LedgerSending):
    """Funds, claims and stakes."""

    async def fund(self, amount: int) -> None:
        """Add base units of the run's token to its rewards. Not idempotent: a second call funds again."""
        await self._now("fund", amount)

    async def reclaim(self, to: str) -> None:
        """Pay the funds that no root has promised to the owner's address `to`. Raises
        LedgerRejected before the run is over."""
        await self._now("reclaim", checked_address(to))

    async def claim(self, epoch: int, leaf: Leaf, proof: MerkleProof) -> None:
        """Pay a leaf's wallet what it is owed. Anyone may send this. Succeeds if it was paid already."""

        async def is_done() -> bool:
            return 0 < leaf.amount <= await self.claimed(leaf)

        await self._ensure(is_done, lambda: self._call("claim", epoch, leaf, proof))

    async def stake(self, node: str, wallet: str, amount: int) -> None:
        """Stake our base units on a node, returnable to `wallet`. Not idempotent: a second call stakes again."""
        await self._now("stake", node, checked_address(wallet), amount)

    async def unbond(self, node: str) -> None:
        """Begin to unbond our stake in a node (the operator key is the wallet's). Succeeds if
        unbonding has begun already."""

        async def is_done() -> bool:
            held = (await self.stakes()).get((node, self.operator or ""))
            return held is not None and held.unbond_at > 0

        await self._ensure(is_done, lambda: self._call("unbond", node))

    async def withdraw(self, node: str) -> None:
        """Withdraw our unbonded stake. Raises LedgerRejected ("bonded", "stake is frozen", "no stake")."""
        await self._now("withdraw", node)
