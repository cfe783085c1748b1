"""Node keys: registration and rotation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ledger.base.sending import LedgerSending
from ledger.errors import LedgerRejected
from ledger.records import RegistrationRequest, RotationRequest
from ledger.registrations import MAX_NONCE, RegistrationEvent, RotationEvent, is_signed_by_node
from ledger.signing import rotation_message, rotation_typed_data
from ledger.wallet import checked_address


@dataclass(frozen=True, slots=True)
class RotationMessages:
    """What must be signed for a rotation: bytes by the node keys, EIP-712 data by the wallet
    (None where the old key signs)."""

    node: bytes
    wallet: dict[str, Any] | None


class NodeCalls(LedgerSending):
    """Registrations and rotations."""

    async def register(self, request: RegistrationRequest) -> None:
        """Send a registration and pay its gas. Succeeds if it is in force already.

        Raises LedgerRejected for a wrong signature or an old nonce, WalletError for a malformed address or node id.
        """
        request = _normal_form(request)
        if request.run != self._must_have_run():
            raise LedgerRejected("unknown run")
        # The contract cannot check this signature, and readers would ignore the event: do not spend gas on it.
        event = RegistrationEvent(
            request.node, request.wallet, request.claimed, request.nonce, request.node_signature, block=0
        )
        if not is_signed_by_node(event, domain=self.domain, run=request.run):
            raise LedgerRejected("node signature")

        async def is_done() -> bool:
            held = await self.registration(request.node)
            if held is None or held.nonce < request.nonce:
                return False
            if (held.nonce, held.wallet, held.claimed) != (request.nonce, request.wallet, request.claimed):
                raise LedgerRejected("nonce")
            return True

        await self._ensure(is_done, lambda: self._send_registration(request))

    def rotation_messages(
        self, old_node: str, new_node: str, *, wallet: str | None = None, nonce: int
    ) -> RotationMessages:
        """What to sign to replace `old_node` by `new_node`: typed data for the wallet, or bytes for the old key."""
        fields = {"run": self._must_have_run(), "old_node": old_node, "new_node": new_node}
        message = rotation_message(self.domain, **fields, wallet=wallet, nonce=nonce)
        if wallet is None:
            return RotationMessages(message, None)
        return RotationMessages(message, rotation_typed_data(self.domain, **fields, wallet=wallet, nonce=nonce))

    async def rotate(self, request: RotationRequest) -> None:
        """Replace an old node key by a new one. Succeeds if the rotation was made already.

        Raises LedgerRejected when a signature is missing, when the old key has no registration, or
        when the new key had one before.
        """
        request = _normal_rotation(request)
        if request.run != self._must_have_run():
            raise LedgerRejected("unknown run")
        event = RotationEvent(
            request.old_node,
            request.new_node,
            request.wallet,
            request.nonce,
            request.old_node_signature,
            request.new_node_signature,
            block=0,
        )
        # The contract cannot check this signature, and readers would ignore the event: do not spend gas on it.
        if not is_signed_by_node(event, domain=self.domain, run=request.run):
            raise LedgerRejected("node signature")

        async def is_done() -> bool:
            held = await self.registrations()
            if request.new_node in held and request.old_node in held[request.new_node].previous:
                return True
            old = held.get(request.old_node)
            if old is None or request.new_node in held or (request.wallet and request.wallet != old.wallet):
                raise LedgerRejected("rotation")
            return False

        await self._ensure(is_done, lambda: self._send_rotation(request))


def _normal_form(request: RegistrationRequest) -> RegistrationRequest:
    """The request with addresses and signatures in canonical form, since it may come from a stranger."""
    if not 0 < request.nonce <= MAX_NONCE:
        raise LedgerRejected("nonce")
    return replace(
        request,
        wallet=checked_address(request.wallet) if request.wallet else None,
        claimed=checked_address(request.claimed) if request.claimed else None,
        wallet_signature=_plain_hex(request.wallet_signature),
        node_signature=_plain_hex(request.node_signature),
    )


def _normal_rotation(request: RotationRequest) -> RotationRequest:
    """The request with addresses and signatures in canonical form, since it may come from a stranger."""
    if not 0 < request.nonce <= MAX_NONCE:
        raise LedgerRejected("nonce")
    return replace(
        request,
        wallet=checked_address(request.wallet) if request.wallet else None,
        wallet_signature=_plain_hex(request.wallet_signature),
        old_node_signature=_plain_hex(request.old_node_signature),
        new_node_signature=_plain_hex(request.new_node_signature),
    )


def _plain_hex(text: str) -> str:
    return text.removeprefix("0x").lower()
