"""Everything that can be credited: accepted submissions, proven faults and receipts, each with the rows that prove it.
A proposer tallies it; other validators compare a proposal with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dht.envelope import Envelope
from dht.errors import Malformed
from roles.messages import Receipt, receipts_key
from roles.observer import Observer
from roles.ports import Clock
from roles.tally import Contribution, TallyContext, place_digest, receipt_place, refusal_digest
from roles.trusted import AdmittedSubmission, TrustedState
from roles.validator.faults import FaultBook

MAX_STEPS = 64
"""Number of checkpoints, the newest, whose receipts are read for one tally."""


class Gathering:
    """One validator's view of what can be credited."""

    def __init__(self, *, trusted: TrustedState, observer: Observer, faults: FaultBook, clock: Clock) -> None:
        self._spec, self._trusted, self._observer, self._faults = trusted.spec, trusted, observer, faults
        self._clock, self._since = clock, dict[str, int]()  # when each submission was first seen accepted

    def observe(self) -> None:
        """Record what is accepted by now, if the run has an audit window, which starts at that moment."""
        if self._spec.checks.audit_window:
            self.note()

    def note(self) -> None:
        """Record what is accepted by now. A proposer is not blamed for leaving out what came later."""
        now = self._clock()
        self._since = {item.digest: self._since.get(item.digest, now) for item in self._trusted.accepted()}

    @property
    def is_waiting(self) -> bool:
        """Whether an accepted submission may still be called a fault in time."""
        return any(map(self._waits, self._since))

    def _waits(self, digest: str) -> bool:
        window, now = 1000 * self._spec.checks.audit_window, self._clock()
        return window > 0 and now < self._since.get(digest, now) + window

    def contributions(self, context: TallyContext) -> list[Contribution]:
        """Accepted submissions that are not credited yet and whose audit window has passed."""
        self.observe()
        credited = context.credited()
        return [
            Contribution(item.row, rows)
            for item in self._trusted.accepted()
            if context.is_creditable(item.submission.step)
            and place_digest(item.submission) not in credited
            and not self._waits(item.digest)
            and len(rows := self._votes(item, context)) >= context.quorum
        ]

    def held(self, context: TallyContext, *, before: int) -> dict[str, tuple[int, Contribution]]:
        """Tokens and rows, by place, of each creditable submission that was accepted before this moment."""
        found: dict[str, tuple[int, Contribution]] = {}
        credited = context.credited()
        for item in self._trusted.accepted():
            submission, place = item.submission, place_digest(item.submission)
            if (
                self._since.get(item.digest, before) < before
                and context.is_creditable(submission.step)
                and context.registration_of(submission.node) is not None
                and place not in credited
                and len(rows := self._votes(item, context)) >= context.quorum
            ):
                found[place] = (submission.tokens, Contribution(item.row, rows))
        return found

    def accepted_last(self, places: Collection[str]) -> int:
        """When the last of these places was accepted; 0 if none was."""
        return max(
            (
                self._since.get(item.digest, 0)
                for item in self._trusted.accepted()
                if place_digest(item.submission) in places
            ),
            default=0,
        )

    def refusals(self, context: TallyContext) -> list[Contribution]:
        """Submissions at fault whose verdicts have not been credited to their validators yet."""
        self._faults.observe()
        credited = context.credited()
        return [
            said.proof
            for fault in self._faults.faults.values()
            if context.is_creditable(fault.submission.step)
            and refusal_digest(fault.digest) not in credited
            and (said := fault.said_by(context.bench)) is not None
        ]

    async def receipts(self, context: TallyContext) -> list[tuple[int, Envelope]]:
        """Receipts that may count, with the checkpoint each is about."""
        steps = [step for step in sorted(context.commits) if context.is_creditable(step)][-MAX_STEPS:]
        buckets = range(self._spec.buckets)
        keys = [receipts_key(self._trusted.run, step, bucket) for step in steps for bucket in buckets]
        credited = context.credited()
        return [
            (receipt.step, row)
            for row, receipt in self._opened(await self._observer.read_rows(keys) if keys else ())
            if context.is_creditable(receipt.step) and receipt_place(receipt) not in credited
        ]

    def _opened(self, rows: Iterable[Envelope]) -> Iterable[tuple[Envelope, Receipt]]:
        for row in rows:
            try:
                message = self._trusted.open(row)
            except Malformed:
                continue
            if isinstance(message, Receipt) and row.signer == message.client and self._trusted.is_member(row.signer):
                yield row, message

    def _votes(self, item: AdmittedSubmission, context: TallyContext) -> tuple[Envelope, ...]:
        """The acceptances of all validators whose verdicts count; each is credited for its own."""
        accepts = self._trusted.standings[item.digest].rows_saying("accept", item.submission)
        return tuple(row for row in accepts if row.signer in context.validators)
