"""A validator's part in the tally: adopt what is final, propose in its turn, attest valid proposals, finalise.

Round and proposer follow ledger time, so an absent proposer costs one round. An attestation is written to disk before
it is given, and only one is given per epoch and round.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from dht.envelope import Envelope
from dht.errors import NodeError, PeerError, TransportError
from ledger.errors import LedgerError
from ledger.records import Attestation, Block, FinalRoot, Proposal
from roles.context import RunContext
from roles.messages import Submission, TallyRow, tally_key
from roles.ports import Ledger
from roles.rules import Refusal
from roles.shardcast.grants import relays_in
from roles.tally import (
    TallyBody,
    TallyContext,
    TallyRefused,
    build_tally,
    check_tally,
    oldest_block,
    open_final_tally,
    open_proposed,
    open_receipt,
    place_digest,
    read_context,
)
from roles.validator.closings import Closings
from roles.validator.gathering import Gathering
from roles.validator.kept_blobs import KeptBlobs
from roles.validator.omissions import Omissions
from roles.validator.published import PublishedSizes
from roles.validator.records import JudgedRows
from roles.validator.tally_rows import proposal_from, row_from
from roles.validator.waits import Waits

log = structlog.get_logger()

GRACE_MS = 3_000
"""How long a proposer waits, after a close, for verdicts still under way."""
STAGGER_MS = 4_000
"""How long the other validators leave finalising to the proposer."""
RESEND_MS = 20_000
ASK_AGAIN_MS, LONGEST_PAUSE_MS = 3_000, 60_000
"""Shortest and longest pause before a proposer's next proposal is examined. It grows with each one that
was unavailable or invalid."""


class Tallying:
    """The epochs of one run as one validator sees them. `turn` does whatever can be done now and never raises."""

    def __init__(
        self,
        context: RunContext,
        *,
        ledger: Ledger,
        blobs: KeptBlobs,
        gathering: Gathering,
        published: PublishedSizes,
        records: JudgedRows,
    ) -> None:
        self.roots: Sequence[FinalRoot] = ()
        self._spec, self._node, self._clock = context.spec, context.node, context.clock
        self._trusted, self._observer, self._voice = context.trusted, context.observer, context.voice
        self._ledger, self._blobs, self._records = ledger, blobs, records
        self._gathering, self._published = gathering, published
        self._omissions = Omissions(spec=context.spec, gathering=gathering, clock=context.clock)
        self._parent: TallyBody | None = None
        self._credited: frozenset[str] = frozenset()
        self._attested: dict[tuple[int, int], TallyRow] = {}
        self._refused: set[str] = set()
        self._closings, self._waits = Closings(ledger), Waits(context.clock)
        self._troubles: dict[str, tuple[int, int]] = {}  # by proposer: failures in a row, and until when it waits
        self._down: str | None = None

    @property
    def epoch(self) -> int:
        """The epoch being tallied."""
        return len(self.roots)

    def is_credited(self, submission: Submission) -> bool:
        """Whether a final tally credits this place."""
        return place_digest(submission) in self._credited

    def may_be_credited(self, submission: Submission) -> bool:
        """Whether submissions of this step can still be credited."""
        return submission.step >= self.oldest_creditable_step()

    def oldest_creditable_step(self) -> int:
        """The lowest step whose submissions can still be credited."""
        view = self._trusted.view
        if view is None:
            return 0
        closed = oldest_block(self.roots, self._parent, validators=len(self._trusted.judges))
        return max((step + 1 for step, commit in view.commits.items() if commit.block <= closed), default=0)

    def has_uncredited(self, last_step: int) -> bool:
        """Whether an accepted submission of a step up to `last_step`, or a step itself, still waits for a tally."""
        view = self._trusted.view
        closed = self.roots[-1].closing_block if self.roots else -1
        if view is not None and any(step > 0 and commit.block > closed for step, commit in view.commits.items()):
            return True
        return any(
            item.submission.step <= last_step
            and self.may_be_credited(item.submission)
            and not self.is_credited(item.submission)
            for item in self._trusted.accepted()
        )

    async def resume(self) -> None:
        """Announce again what was attested before a restart."""
        for row in self._records.attestations():
            self._attested[(row.epoch, row.round)] = row
        if self._attested:
            await self._announce(self._attested[max(self._attested)], ())

    async def turn(self, *, is_settled: Callable[[], bool]) -> None:
        """Do one round on the epoch: adopt, read, propose, attest, finalise."""
        try:
            await self._turn(is_settled)
        except (LedgerError, NodeError, TimeoutError, OSError) as error:  # a full disk only delays
            self._note(str(error) or type(error).__name__)
        else:
            self._note(None)

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self._down:
            log.warning("tally.delayed", epoch=self.epoch, why=trouble)
        self._down = trouble

    async def _turn(self, is_settled: Callable[[], bool]) -> None:
        view = self._trusted.view
        if view is None:
            return
        await self._adopt(await self._ledger.final_roots())
        closings = await self._closings.find(self.roots)
        if not closings:
            return
        for row in await self._observer.read_rows([tally_key(self._trusted.run, self.epoch)]):
            self._admit(row)
        head = await self._ledger.head()
        self._omissions.look({closing.number: self._round_at(closing, head) for closing in closings})
        await self._attest_proposals(closings, head)
        await self._propose(closings, head, is_settled)
        await self._finalise()

    # -- what is final -------------------------------------------------------------------------------------------

    async def _adopt(self, roots: Sequence[FinalRoot]) -> None:
        """Build on what the ledger says is final. The newest blob is stored, so that it is never lost."""
        if tuple(roots) == tuple(self.roots):
            return
        parent = open_final_tally(await self._blobs.get(roots[-1].blob), roots[-1]) if roots else None
        self._parent = parent
        self._credited = parent.places() if parent else frozenset()
        for root in roots[len(self.roots) :]:
            log.info(
                "tally.finalised",
                epoch=root.epoch,
                round=root.round,
                root=root.root,
                total=root.total,
                amount=root.amount,
            )
        self.roots = tuple(roots)
        self._refused.clear()
        self._waits.clear()
        self._omissions.forget()
        self._troubles.clear()
        self._closings.forget()
        self._drop_old_rows()
        await self._blobs.keep_only({root.blob for root in roots[-2:]})

    def _drop_old_rows(self) -> None:
        for place in [place for place in self._attested if place[0] < self.epoch - 1]:
            self._voice.withdraw(self._attested.pop(place))
        self._trusted.forget_tallies_before(self.epoch)

    async def _context(self, closing: Block) -> TallyContext:
        return await read_context(
            self._ledger,
            spec=self._spec,
            roots=self.roots,
            parent=self._parent,
            closing_block=closing.number,
            published={},
        )

    # -- proposing -----------------------------------------------------------------------------------------------

    async def _propose(self, closings: Sequence[Block], head: Block, is_settled: Callable[[], bool]) -> None:
        for closing in closings:
            context = await self._context(closing)
            contributions = self._gathering.contributions(context)
            if contributions or context.new_steps():
                break
        else:
            return
        number = self._round_at(closing, head)
        if context.proposer(number) != self._node or (self.epoch, number) in self._attested:
            return
        waited = self._waits.waited(("close", closing.number))
        if waited < max(GRACE_MS, 1000 * self._spec.checks.audit_window) and not is_settled():
            return
        receipts = await self._gathering.receipts(context)
        # Others may be unable to check what only this node remembers: after a failed proposal it is left out.
        look_up = self._published.shown if self._has_proposed(context) else self._published.known
        published = await look_up({step for step, _ in receipts}, context.commits)
        blob, proposal = await asyncio.to_thread(
            build_tally,
            replace(context, published=published),
            contributions,
            round_number=number,
            refusals=self._gathering.refusals(context),
            receipts=[row for _, row in receipts],
        )
        holders = await self._blobs.put(blob)
        log.info(
            "tally.proposed",
            epoch=self.epoch,
            round=number,
            root=proposal.root,
            total=proposal.total,
            amount=proposal.amount,
        )
        await self._attest(proposal, blob, holders)

    def _has_proposed(self, context: TallyContext) -> bool:
        """Whether this node has already proposed in this epoch; that proposal cannot be final,
        or the epoch would be over."""
        return any(epoch == self.epoch and context.proposer(number) == self._node for epoch, number in self._attested)

    def _round_at(self, closing: Block, head: Block) -> int:
        return max(0, head.timestamp - closing.timestamp) // self._spec.epoch.round_seconds

    # -- attesting -----------------------------------------------------------------------------------------------

    def _admit(self, row: Envelope) -> None:
        try:
            self._trusted.admit_tally(row)
        except (PeerError, Refusal):
            return

    async def _attest_proposals(self, closings: Sequence[Block], head: Block) -> None:
        """Check and attest the proposals that the proposers of rounds have announced."""
        blocks = {block.number: block for block in closings}
        for (epoch, number, signer), (row, envelope) in sorted(self._trusted.tallies.items()):
            closing = blocks.get(row.closing_block)
            if epoch != self.epoch or closing is None or (epoch, number) in self._attested or row.blob in self._refused:
                continue
            context = await self._context(closing)
            self._omissions.see(row.blob)
            # [IGNORE] out of turn, or in a round that this node's ledger has not reached
            if context.proposer(number) == signer and number <= self._round_at(closing, head) + 1:
                await self._try_proposal(row, envelope, context)

    async def _try_proposal(self, row: TallyRow, envelope: Envelope, context: TallyContext) -> None:
        """Judge a proposal. Proposals that are unavailable or false must not keep the others from theirs."""
        failures, due = self._troubles.get(envelope.signer, (0, 0))
        if 0 < due - self._clock() <= LONGEST_PAUSE_MS:
            return
        try:
            holds = await self._judge_proposal(row, envelope, context)
        except (TransportError, TimeoutError) as error:
            holds = False
            log.info("tally.unavailable", epoch=row.epoch, round=row.round, why=str(error) or "no answer in time")
        if holds:
            self._troubles.pop(envelope.signer, None)
        else:
            pause = min(ASK_AGAIN_MS * 2 ** min(failures, 10), LONGEST_PAUSE_MS)
            self._troubles[envelope.signer] = (failures + 1, self._clock() + pause)

    async def _judge_proposal(self, row: TallyRow, envelope: Envelope, context: TallyContext) -> bool:
        proposal = proposal_from(row)
        relays = relays_in(envelope.hint)
        blob = await self._blobs.get(row.blob, relays)
        disputed = self._trusted.disputed()
        try:
            steps = await asyncio.to_thread(_receipt_steps, blob, context)
            context = replace(context, published=await self._published.of(steps, context.commits))
            body = await asyncio.to_thread(check_tally, blob, proposal, context, disputed=disputed)
        except TallyRefused as error:
            self._refused.add(row.blob)
            log.warning("tally.refused", epoch=row.epoch, round=row.round, proposer=envelope.signer, why=str(error))
            return False
        if self._omissions.forbid(row.blob, body, context):
            self._refused.add(row.blob)
        else:
            await self._attest(proposal, blob, relays)
        return True

    async def _attest(self, proposal: Proposal, blob: bytes, relays: Sequence[str]) -> None:
        attestation = await self._ledger.attest(proposal)
        row = row_from(proposal, attestation, size=len(blob))
        if not self._records.keep_attestation(row):
            return
        self._attested[(row.epoch, row.round)] = row
        await self._announce(row, relays)
        log.info("tally.attested", epoch=row.epoch, round=row.round, root=row.root, total=row.total, amount=row.amount)

    async def _announce(self, row: TallyRow, relays: Sequence[str]) -> None:
        self._admit(await self._voice.announce(row, relays=relays))

    # -- finalising ----------------------------------------------------------------------------------------------

    async def _finalise(self) -> None:
        """Send a proposal that has a quorum: at once if it is ours, otherwise when its proposer has not."""
        by_proposal: defaultdict[Proposal, dict[str, Attestation]] = defaultdict(dict)
        for (epoch, _, _), (row, _) in self._trusted.tallies.items():
            if epoch == self.epoch:
                by_proposal[proposal_from(row)][row.operator] = Attestation(row.operator, row.signature)
        for proposal, claimed in by_proposal.items():
            if len(claimed) >= self._trusted.quorum and self._is_due(proposal):
                await self._send(proposal, claimed)

    def _is_due(self, proposal: Proposal) -> bool:
        validators = [item.node for item in self._trusted.judges] or [""]
        is_own = validators[(proposal.epoch + proposal.round) % len(validators)] == self._node
        waited = self._waits.waited(("quorum", proposal))
        return is_own or waited >= STAGGER_MS

    async def _send(self, proposal: Proposal, claimed: dict[str, Attestation]) -> None:
        valid = [item for item in claimed.values() if await self._ledger.check_attestation(proposal, item)]
        if len(valid) < self._trusted.quorum or not self._waits.is_time(("sent", proposal), RESEND_MS):
            return
        try:
            await self._ledger.finalise(proposal, valid)
        except LedgerError as error:  # another validator was first, or the chain is unreachable: seen next turn
            log.info("tally.unsent", epoch=proposal.epoch, round=proposal.round, why=str(error))


def _receipt_steps(blob: bytes, context: TallyContext) -> set[int]:
    """Checkpoints for which a proposed tally counts receipts. Raises TallyRefused."""
    body = open_proposed(blob, context)
    return {open_receipt(text, context).step for text in body.receipts}
