"""What every ledger does the same way, on a chain or in memory: attest, and send so that repeating is harmless."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ledger import standing
from ledger.changes import Change, ValidatorsProposed
from ledger.errors import LedgerError, LedgerRejected
from ledger.events import EventLog
from ledger.merkle import MerkleProof
from ledger.records import (
    Attestation,
    Block,
    Commit,
    FinalRoot,
    HeldStrike,
    Leaf,
    Lease,
    Operator,
    Proposal,
    Registration,
    RegistrationRequest,
    Role,
    RotationRequest,
    RunTerms,
    Stake,
    Strike,
    ValidatorSet,
)
from ledger.rules import (
    MAX_NONCE,
    RegistrationEvent,
    RotationEvent,
    check_digest,
    check_proposal,
    check_strike,
    find_closing_block,
    is_committed,
    is_settled,
    is_signed_by_node,
)
from ledger.signing import lift_typed_data, rotation_message, rotation_typed_data, strike_typed_data
from ledger.wallet import (
    Domain,
    address_of,
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
    async def close(self) -> None:
        """Give back what the ledger holds."""

    @abstractmethod
    async def _log(self) -> EventLog:
        """Everything the run's events said up to the newest block. Not to be changed by the caller."""

    async def commits(self, from_step: int = 0) -> Sequence[Commit]:
        """Committed checkpoints from `from_step` on, in order."""
        return (await self._log()).commits[from_step:]

    async def final_roots(self) -> Sequence[FinalRoot]:
        """Final tallies, by epoch."""
        return tuple((await self._log()).roots)

    async def lease(self, until: int | None = None) -> Lease:
        """Which node leads, in which term, now or as of block `until`."""
        log = await self._log()
        return standing.lease_of(await self.terms(), log.commits, log.changes, until)

    async def validators_at(self, block: int | None = None) -> ValidatorSet:
        """Whose attestations count, now or as of a block. The contract judges by the set of the block a call is in."""
        return standing.validators_of(await self.terms(), (await self._log()).changes, block)

    async def waiting_validators(self) -> ValidatorsProposed | None:
        """The set of validators the owner announced that is not in force yet."""
        return standing.waiting_validators((await self._log()).changes)

    async def funds_at(self, block: int | None = None) -> int:
        """Base units funded and slashed less what was reclaimed, now or as of a block: what roots may promise in all.
        Claims do not lower it."""
        return standing.funds_of((await self._log()).changes, block)

    async def stakes(self, block: int | None = None) -> Mapping[tuple[str, str], Stake]:
        """Stakes by (node, wallet), now or as of a block."""
        return standing.stakes_of((await self._log()).changes, block)

    async def strikes(self, block: int | None = None) -> Sequence[HeldStrike]:
        """Every strike in the order made, as it stands now or stood at a block."""
        return standing.strikes_of(self._must_have_run(), (await self._log()).changes, block)

    async def strike_number(self, node: str) -> int:
        """Number the next strike of a node has."""
        return sum(each.strike.node == node for each in await self.strikes())

    async def claimed(self, leaf: Leaf) -> int:
        """Base units paid to the leaf's wallet for its node and role, of all epochs."""
        return (await self.paid())[(leaf.role, leaf.node, leaf.wallet)] if leaf.wallet else 0

    async def paid(self) -> Counter[tuple[Role, str, str]]:
        """Base units paid, by (role, node, wallet)."""
        return standing.paid_of((await self._log()).changes)

    async def changes(self) -> Sequence[Change]:
        """Events of leases, money, strikes and validators, in chain order."""
        return tuple((await self._log()).changes)

    async def is_paused(self) -> bool:
        """Whether the owner has stopped the run."""
        return standing.paused_of((await self._log()).changes)

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
        check_proposal(proposal)
        return self._attestation(tally_typed_data(self.domain, proposal))

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

    def rotation_messages(
        self, old_node: str, new_node: str, *, wallet: str | None = None, nonce: int
    ) -> RegistrationMessages:
        """What to sign to put `new_node` in the place of `old_node`: by the wallet (typed data), or by the old key."""
        fields = {"run": self._must_have_run(), "old_node": old_node, "new_node": new_node}
        message = rotation_message(self.domain, **fields, wallet=wallet, nonce=nonce)
        if wallet is None:
            return RegistrationMessages(message, None)
        return RegistrationMessages(message, rotation_typed_data(self.domain, **fields, wallet=wallet, nonce=nonce))

    async def rotate(self, request: RotationRequest) -> None:
        """Put a new node key in the place of an old one. One done already is a success.

        Raises LedgerRejected when a signature is missing, or for a key that has no registration or had one before.
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
        # The contract cannot tell, and readers would ignore it: no gas for that.
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

    async def renew(self) -> None:
        """Renew the lease without a checkpoint."""
        await self._now("renew")

    async def report_lapse(self) -> None:
        """Say that the lease has lapsed. That it was said already is a success."""

        async def is_done() -> bool:
            return (await self.lease()).lapse_block > 0

        await self._ensure(is_done, lambda: self._call("report_lapse"))

    async def take_over(self) -> None:
        """Lead in a new term. Raises LedgerRejected ("lapse", "lease") when it is not time. Leading is a success."""
        trainers = {each.operator: each.node for each in (await self.terms()).trainers}

        async def is_done() -> bool:
            return (await self.lease()).leader == trainers.get(self.operator or "")

        await self._ensure(is_done, lambda: self._call("take_over"))

    async def fund(self, amount: int) -> None:
        """Add base units of the run's token to its rewards. Repeated, it funds again."""
        await self._now("fund", amount)

    async def reclaim(self, to: str) -> None:
        """Pay the owner's `to` what no root has promised. Raises LedgerRejected before the run is over."""
        await self._now("reclaim", checked_address(to))

    async def claim(self, epoch: int, leaf: Leaf, proof: MerkleProof) -> None:
        """Have a leaf's wallet paid, whoever sends it. What was paid already is a success."""

        async def is_done() -> bool:
            return 0 < leaf.amount <= await self.claimed(leaf)

        await self._ensure(is_done, lambda: self._call("claim", epoch, leaf, proof))

    async def stake(self, node: str, wallet: str, amount: int) -> None:
        """Put base units of ours behind a node, for a wallet to have back. Repeated, it stakes again."""
        await self._now("stake", node, checked_address(wallet), amount)

    async def unbond(self, node: str) -> None:
        """Begin to take our stake (the key is the wallet's) from a node. Begun already is a success."""

        async def is_done() -> bool:
            held = (await self.stakes()).get((node, self.operator or ""))
            return held is not None and held.unbond_at > 0

        await self._ensure(is_done, lambda: self._call("unbond", node))

    async def withdraw(self, node: str) -> None:
        """Have our unbonded stake back. Raises LedgerRejected ("bonded", "stake is frozen", "no stake")."""
        await self._now("withdraw", node)

    async def attest_strike(self, strike: Strike) -> Attestation:
        """Sign a strike with the operator key; see `attest`."""
        check_strike(strike)
        return self._attestation(strike_typed_data(self.domain, strike))

    async def check_strike_attestation(self, strike: Strike, attestation: Attestation) -> bool:
        """Whether the signature is the named operator's. That it is a validator's, `validators_at` says."""
        try:
            check_strike(strike)
        except LedgerError:
            return False
        signer = recover_typed_data(strike_typed_data(self.domain, strike), attestation.signature)
        return signer is not None and signer == attestation.operator

    async def strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None:
        """Eject a node. That this strike stands already is a success."""
        check_strike(strike)

        async def is_done() -> bool:
            return any(each.strike == strike for each in await self.strikes())

        await self._ensure(is_done, lambda: self._send_strike(strike, attestations))

    async def dispute(self, node: str, counter_evidence: str) -> None:
        """Answer the open strike of a node of ours (the key is the wallet's) with a digest."""
        check_digest(counter_evidence)
        await self._now("dispute", node, counter_evidence)

    async def attest_lift(self, node: str, number: int) -> Attestation:
        """Sign with the operator key that a strike is to be taken back."""
        return self._attestation(lift_typed_data(self.domain, run=self._must_have_run(), node=node, number=number))

    async def check_lift_attestation(self, node: str, number: int, attestation: Attestation) -> bool:
        """Whether the signature is the named operator's. That it is a validator's, `validators_at` says."""
        try:
            typed = lift_typed_data(self.domain, run=self._must_have_run(), node=node, number=number)
        except LedgerError:
            return False
        signer = recover_typed_data(typed, attestation.signature)
        return signer is not None and signer == attestation.operator

    async def lift(self, node: str, number: int, attestations: Sequence[Attestation]) -> None:
        """Take a strike back. Taken back already is a success."""
        await self._ensure(
            lambda: self._is_struck(node, number, "lifted"),
            lambda: self._call("lift", node, number, tuple(attestations)),
        )

    async def settle(self, node: str) -> None:
        """Close a strike whose window has passed. Closed already is a success."""
        number = await self.strike_number(node) - 1
        await self._ensure(lambda: self._is_struck(node, number, "settled"), lambda: self._call("settle", node))

    async def propose_validators(self, validators: Sequence[Operator], quorum: int) -> None:
        """Announce another set of validators: the owner's call."""
        await self._now("propose_validators", tuple(validators), quorum)

    async def apply_validators(self) -> None:
        """Put the announced set in force. Raises LedgerRejected ("no change waits", "change must wait")."""
        await self._now("apply_validators")

    async def pause(self, on: bool) -> None:
        """Stop or resume the run: the owner's call. So already is a success."""

        async def is_done() -> bool:
            return await self.is_paused() == on

        await self._ensure(is_done, lambda: self._call("pause", on))

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
        """Send one of the contract's other calls: its name, and after the run what its parameters are as records."""

    @abstractmethod
    async def _settle(self) -> None:
        """See left-over transactions through and read the newest state."""

    async def _now(self, name: str, *arguments: object) -> None:
        """Send a call that is not judged by what is so already."""
        await self._settle()
        await self._call(name, *arguments)
        await self._settle()

    async def _is_struck(self, node: str, number: int, outcome: str) -> bool:
        named = [each for each in await self.strikes() if (each.strike.node, each.strike.number) == (node, number)]
        return bool(named) and named[0].outcome == outcome

    def _attestation(self, typed_data: dict[str, Any]) -> Attestation:
        if self._operator_key is None:
            raise LedgerError("no operator key: this node cannot attest")
        return Attestation(address_of(self._operator_key), sign_typed_data(typed_data, self._operator_key))

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
        wallet_signature=_plain_hex(request.wallet_signature),
        node_signature=_plain_hex(request.node_signature),
    )


def _normal_rotation(request: RotationRequest) -> RotationRequest:
    """The request with addresses and signatures as records have them: it may come from a stranger."""
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
