"""Coins: rewards funded, claimed and reclaimed, stakes put down and taken back."""

from __future__ import annotations

from ledger.base.sending import LedgerSending
from ledger.merkle import MerkleProof
from ledger.records import Leaf
from ledger.wallet import checked_address


class MoneyCalls(LedgerSending):
    """Funds, claims and stakes."""

    async def fund(self, amount: int) -> None:
        """Add base units of the run's token to its rewards. Repeated, it funds again."""
        await self._now("fund", amount)

    async def reclaim(self, to: str) -> None:
        """Pay the owner's `to` what no root has promised. Raises LedgerRejected before the run is over."""
        await self._now("reclaim", checked_address(to))

    async def claim(self, epoch: int, leaf: Leaf, proof: MerkleProof) -> None:
        """Pay a leaf's wallet what it is owed; anyone may send this. One that was paid already is a success."""

        async def is_done() -> bool:
            return 0 < leaf.amount <= await self.claimed(leaf)

        await self._ensure(is_done, lambda: self._call("claim", epoch, leaf, proof))

    async def stake(self, node: str, wallet: str, amount: int) -> None:
        """Put base units of ours behind a node, for a wallet to have back. Repeated, it stakes again."""
        await self._now("stake", node, checked_address(wallet), amount)

    async def unbond(self, node: str) -> None:
        """Begin to unbond our stake in a node (the operator key is the wallet's). One that is begun already is a success."""

        async def is_done() -> bool:
            held = (await self.stakes()).get((node, self.operator or ""))
            return held is not None and held.unbond_at > 0

        await self._ensure(is_done, lambda: self._call("unbond", node))

    async def withdraw(self, node: str) -> None:
        """Withdraw our unbonded stake. Raises LedgerRejected ("bonded", "stake is frozen", "no stake")."""
        await self._now("withdraw", node)
