"""Checkpoints and who may commit them, tallies and who may attest them."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.base.sending import LedgerSending, is_attested
from ledger.errors import LedgerError
from ledger.records import Attestation, Commit, Operator, Proposal
from ledger.rules import check_digest, check_proposal, is_committed, is_settled
from ledger.wallet import tally_typed_data


class TrainingCalls(LedgerSending):
    """Leases, commits, tallies, and what the owner may change."""

    async def commit_checkpoint(self, *, term: int, step: int, manifest: str, parent: str, final: bool) -> None:
        """Put a checkpoint in force. Repeated with the same arguments, also after a restart, it is a success."""
        check_digest(manifest)
        check_digest(parent)
        block_unknown = 0
        commit = Commit(term, step, manifest, parent, final, block_unknown, block_unknown)

        async def is_done() -> bool:
            return is_committed(await self.commits(), commit)

        await self._ensure(is_done, lambda: self._send_commit(commit))

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
        return is_attested(tally_typed_data(self.domain, proposal), attestation)

    async def finalise(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        """Make a tally final. That it is already, by whomever, is a success; another one in its place is rejected."""
        check_proposal(proposal)

        async def is_done() -> bool:
            return is_settled(proposal, await self.final_roots())

        await self._ensure(is_done, lambda: self._send_tally(proposal, attestations))

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
