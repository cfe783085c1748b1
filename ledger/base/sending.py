"""Sending calls to the ledger idempotently."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ledger.base.view import LedgerView
from ledger.errors import LedgerError, LedgerRejected
from ledger.records import Attestation, Commit, Proposal, RegistrationRequest, RotationRequest, Strike
from ledger.wallet import address_of, recover_typed_data, sign_typed_data


class LedgerSending(LedgerView):
    """A ledger that an operator key can send to."""

    @abstractmethod
    async def _send_registration(self, request: RegistrationRequest) -> None: ...

    @abstractmethod
    async def _send_commit(self, commit: Commit) -> None: ...

    @abstractmethod
    async def _send_tally(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None: ...

    @abstractmethod
    async def _send_rotation(self, request: RotationRequest) -> None: ...

    @abstractmethod
    async def _send_strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None: ...

    @abstractmethod
    async def _call(self, name: str, *arguments: object) -> None:
        """Send one of the contract's other calls by name. `arguments` are those after the run id, as records."""

    @abstractmethod
    async def _settle(self) -> None:
        """Finish pending transactions and read the newest state."""

    async def _ensure(self, is_done: Callable[[], Awaitable[bool]], send: Callable[[], Awaitable[None]]) -> None:
        """Send unless `is_done` says that the effect is there already, through an earlier try of
        ours or somebody else's call."""
        await self._settle()
        if await is_done():
            return
        try:
            await send()
        except LedgerRejected:
            await self._settle()
            if not await is_done():
                raise
        await self._settle()

    async def _now(self, name: str, *arguments: object) -> None:
        """Send a call whatever the state. Not idempotent: repeating it takes effect again."""
        await self._settle()
        await self._call(name, *arguments)
        await self._settle()

    def _attestation(self, typed_data: dict[str, Any]) -> Attestation:
        if self._operator_key is None:
            raise LedgerError("no operator key: this node cannot attest")
        return Attestation(address_of(self._operator_key), sign_typed_data(typed_data, self._operator_key))


def is_attested(typed_data: dict[str, Any], attestation: Attestation) -> bool:
    """Whether the signature is by the operator it names."""
    return recover_typed_data(typed_data, attestation.signature) == attestation.operator
