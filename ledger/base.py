"""What every ledger does the same way, on a chain or in memory: attest, and send so that repeating is harmless."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ledger.errors import LedgerError, LedgerRejected
from ledger.records import (
    Attestation,
    Block,
    Commit,
    FinalRoot,
    Proposal,
    Registration,
    RegistrationRequest,
    RunTerms,
)
from ledger.rules import MAX_NONCE, check_digest, check_proposal, find_closing_block, is_committed, is_settled
from ledger.wallet import (
    Domain,
    address_of,
    check_node_signature,
    checked_address,
    recover_typed_data,
    registration_message,
    registration_typed_data,
    sign_typed_data,
    tally_typed_data,
)


@dataclass(frozen=True, slots=True)
class RegistrationMessages:
    """What a registration needs signed: bytes by the node key, EIP-712 data by the wallet (None when not linked)."""

    node: bytes
    wallet: dict[str, Any] | None


class BaseLedger(ABC):
    """A ledger for one run, seen with or without an operator key."""

    def __init__(self, *, domain: Domain, run: str | None, operator_key: bytes | None) -> None:
        self.domain = domain
        self._run = run
        self._operator_key = operator_key

    @property
    def operator(self) -> str | None:
        """Address of the operator key; None for a reader."""
        return address_of(self._operator_key) if self._operator_key else None

    @abstractmethod
    async def terms(self, run: str | None = None) -> RunTerms:
        """Terms of a run (default: this ledger's). They never change. Raises LedgerError for an unknown run."""

    @abstractmethod
    async def head(self) -> Block:
        """The newest block."""

    @abstractmethod
    async def block(self, number: int) -> Block | None:
        """Block by number; None when it is not there yet."""

    @abstractmethod
    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`. Not to be changed by the caller."""

    @abstractmethod
    async def commits(self, from_step: int = 0) -> Sequence[Commit]:
        """Committed checkpoints from `from_step` on, in order."""

    @abstractmethod
    async def final_roots(self) -> Sequence[FinalRoot]:
        """Final tallies, by epoch."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what the ledger holds."""

    async def registration(self, node: str) -> Registration | None:
        """The registration in force of a node."""
        return (await self.registrations()).get(node)

    async def closing_block(self, after: int | None = None) -> Block | None:
        """Where the epoch that begins after block `after` closes; see `rules.find_closing_block`."""
        return await find_closing_block(self, after)

    def registration_messages(
        self, node: str, *, wallet: str | None = None, claimed: str | None = None, nonce: int
    ) -> RegistrationMessages:
        """What to sign to register `node` in this run, linked to `wallet` or only claiming an address."""
        run = self._must_have_run()
        message = registration_message(self.domain, run=run, node=node, wallet=wallet, claimed=claimed, nonce=nonce)
        if wallet is None:
            return RegistrationMessages(message, None)
        typed = registration_typed_data(self.domain, run=run, node=node, wallet=wallet, nonce=nonce)
        return RegistrationMessages(message, typed)

    async def register(self, request: RegistrationRequest) -> None:
        """Send a registration, paying its gas. One in force already is a success.

        Raises LedgerRejected for a wrong signature or an old nonce, WalletError for a malformed address or node id.
        """
        request = _normal_form(request)
        if request.run != self._must_have_run():
            raise LedgerRejected("unknown run")
        # The contract cannot tell, and readers would ignore it: no gas for that.
        if not self._is_signed_by_node(request):
            raise LedgerRejected("node signature")

        async def is_done() -> bool:
            held = await self.registration(request.node)
            if held is None or held.nonce < request.nonce:
                return False
            if (held.nonce, held.wallet, held.claimed) != (request.nonce, request.wallet, request.claimed):
                raise LedgerRejected("nonce")
            return True

        await self._ensure(is_done, lambda: self._send_registration(request))

    async def commit_checkpoint(self, *, term: int, step: int, manifest: str, parent: str, final: bool) -> None:
        """Put a checkpoint in force. Repeated with the same arguments, also after a restart, it is a success."""
        check_digest(manifest)
        check_digest(parent)
        block_unknown = 0
        commit = Commit(term, step, manifest, parent, final, block_unknown, block_unknown)

        async def is_done() -> bool:
            return is_committed(await self.commits(), commit)

        await self._ensure(is_done, lambda: self._send_commit(commit))

    async def attest(self, proposal: Proposal) -> Attestation:
        """Sign a tally with the operator key. No chain access: whether to sign is the caller's judgement.

        Raises LedgerError without a key, or for a tally no contract could take.
        """
        if self._operator_key is None:
            raise LedgerError("no operator key: this node cannot attest")
        check_proposal(proposal)
        signature = sign_typed_data(tally_typed_data(self.domain, proposal), self._operator_key)
        return Attestation(address_of(self._operator_key), signature)

    async def check_attestation(self, proposal: Proposal, attestation: Attestation) -> bool:
        """Whether the signature is the named operator's. That it is a validator's, `terms` says."""
        try:
            check_proposal(proposal)
        except LedgerError:
            return False
        signer = recover_typed_data(tally_typed_data(self.domain, proposal), attestation.signature)
        return signer is not None and signer == attestation.operator

    async def finalise(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        """Make a tally final. That it is already, by whomever, is a success; another one in its place is rejected."""
        check_proposal(proposal)

        async def is_done() -> bool:
            return is_settled(proposal, await self.final_roots())

        await self._ensure(is_done, lambda: self._send_tally(proposal, attestations))

    @abstractmethod
    async def _send_registration(self, request: RegistrationRequest) -> None: ...

    @abstractmethod
    async def _send_commit(self, commit: Commit) -> None: ...

    @abstractmethod
    async def _send_tally(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None: ...

    @abstractmethod
    async def _settle(self) -> None:
        """See left-over transactions through and read the newest state."""

    async def _ensure(self, is_done: Callable[[], Awaitable[bool]], send: Callable[[], Awaitable[None]]) -> None:
        """Send unless what is asked for is so already, by an earlier try of ours or by somebody else."""
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

    def _is_signed_by_node(self, request: RegistrationRequest) -> bool:
        message = registration_message(
            self.domain,
            run=request.run,
            node=request.node,
            wallet=request.wallet,
            claimed=request.claimed,
            nonce=request.nonce,
        )
        return check_node_signature(request.node, message, request.node_signature)

    def _must_have_run(self) -> str:
        if self._run is None:
            raise LedgerError("no run was named")
        return self._run


def _normal_form(request: RegistrationRequest) -> RegistrationRequest:
    """The request with addresses and signatures as records have them: it may come from a stranger."""
    if not 0 < request.nonce <= MAX_NONCE:
        raise LedgerRejected("nonce")
    return replace(
        request,
        wallet=checked_address(request.wallet) if request.wallet else None,
        claimed=checked_address(request.claimed) if request.claimed else None,
        wallet_signature=request.wallet_signature.removeprefix("0x").lower(),
        node_signature=request.node_signature.removeprefix("0x").lower(),
    )
