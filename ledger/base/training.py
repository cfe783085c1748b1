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
        """Commit a checkpoint. Succeeds if repeated with the same arguments, also after a restart."""
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
        """Report that the lease has lapsed. Succeeds if that was reported already."""

        async def is_done() -> bool:
            return (await self.lease()).lapse_block > 0

        await self._ensure(is_done, lambda: self._call("report_lapse"))

    async def take_over(self) -> None:
        """Take the lead in a new term. Succeeds if we lead already. Raises LedgerRejected ("lapse",
        "lease") when it is too early."""
        trainers = {each.operator: each.node for each in (await self.terms()).trainers}

        async def is_done() -> bool:
            return (await self.lease()).leader == trainers.get(self.operator or "")

        await self._ensure(is_done, lambda: self._call("take_over"))

    async def attest(self, proposal: Proposal) -> Attestation:
        """Sign a tally with the operator key. No chain access: the caller decides whether to sign.

        Raises LedgerError without a key, or for a tally that no contract could accept.
        """
        check_proposal(proposal)
        return self._attestation(tally_typed_data(self.domain, proposal))

    async def check_attestation(self, proposal: Proposal, attestation: Attestation) -> bool:
        """Whether the signature is by the operator it names. Whether that is a validator's operator, `terms` says."""
        try:
            check_proposal(proposal)
        except LedgerError:
            return False
        return is_attested(tally_typed_data(self.domain, proposal), attestation)

    async def finalise(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        """Make a tally final. Succeeds if it is final already, whoever sent it; LedgerRejected if
        another one is in its place."""
        check_proposal(proposal)

        async def is_done() -> bool:
            return is_settled(proposal, await self.final_roots())

        await self._ensure(is_done, lambda: self._send_tally(proposal, attestations))

    async def propose_validators(self, validators: Sequence[Operator], quorum: int) -> None:
        """Announce a new set of validators. For the owner only."""
        await self._now("propose_validators", tuple(validators), quorum)

    async def apply_validators(self) -> None:
        """Put the announced set in force. Raises LedgerRejected ("no change waits", "change must wait")."""
        await self._now("apply_validators")

    async def pause(self, on: bool) -> None:
        """Pause or resume the run. For the owner only. Succeeds if it is in that state already."""

        async def is_done() -> bool:
            return await self.is_paused() == on

        await self._ensure(is_done, lambda: self._call("pause", on))
