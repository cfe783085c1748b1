"""Strikes: attest, make, dispute, lift and settle them."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.base.sending import LedgerSending, is_attested
from ledger.errors import LedgerError
from ledger.records import Attestation, Strike
from ledger.rules import check_digest, check_strike
from ledger.signing import lift_typed_data, strike_typed_data


class StrikeCalls(LedgerSending):
    """Strikes of nodes."""

    async def attest_strike(self, strike: Strike) -> Attestation:
        """Sign a strike with the operator key; see `attest`."""
        check_strike(strike)
        return self._attestation(strike_typed_data(self.domain, strike))

    async def check_strike_attestation(self, strike: Strike, attestation: Attestation) -> bool:
        """Whether the signature is by the operator it names. Whether that is a validator's
        operator, `validators_at` says."""
        try:
            check_strike(strike)
        except LedgerError:
            return False
        return is_attested(strike_typed_data(self.domain, strike), attestation)

    async def strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None:
        """Eject a node. Succeeds if this strike is on the ledger already."""
        check_strike(strike)

        async def is_done() -> bool:
            return any(each.strike == strike for each in await self.strikes())

        await self._ensure(is_done, lambda: self._send_strike(strike, attestations))

    async def dispute(self, node: str, counter_evidence: str) -> None:
        """Dispute the open strike of a node of ours with a digest (the operator key is the wallet's)."""
        check_digest(counter_evidence)
        await self._now("dispute", node, counter_evidence)

    async def attest_lift(self, node: str, number: int) -> Attestation:
        """Sign with the operator key that a strike be lifted."""
        return self._attestation(lift_typed_data(self.domain, run=self._must_have_run(), node=node, number=number))

    async def check_lift_attestation(self, node: str, number: int, attestation: Attestation) -> bool:
        """Whether the signature is by the operator it names. Whether that is a validator's
        operator, `validators_at` says."""
        try:
            typed = lift_typed_data(self.domain, run=self._must_have_run(), node=node, number=number)
        except LedgerError:
            return False
        return is_attested(typed, attestation)

    async def lift(self, node: str, number: int, attestations: Sequence[Attestation]) -> None:
        """Lift a strike. Succeeds if it is lifted already."""
        await self._ensure(
            lambda: self._is_struck(node, number, "lifted"),
            lambda: self._call("lift", node, number, tuple(attestations)),
        )

    async def settle(self, node: str) -> None:
        """Close a strike whose dispute window has passed. Succeeds if it is closed already."""
        number = await self.strike_number(node) - 1
        await self._ensure(lambda: self._is_struck(node, number, "settled"), lambda: self._call("settle", node))

    async def _is_struck(self, node: str, number: int, outcome: str) -> bool:
        named = [each for each in await self.strikes() if (each.strike.node, each.strike.number) == (node, number)]
        return bool(named) and named[0].outcome == outcome
