"""What a validator knows of each submission: whether it came in time, whether it still needs a verdict,
and what it is waiting for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from dht.envelope import Envelope
from dht.errors import Malformed
from roles import rules
from roles.messages import Verdict
from roles.ports import Clock
from roles.rules import PASSING, Ignore, Reason, Refusal
from roles.trusted import AdmittedSubmission, TrustedState
from roles.validator.records import JudgedRows
from roles.verification import Finding

log = structlog.get_logger()

EQUIVOCATIONS_FORGIVEN = 2
LONGEST_RETRY_MS = 30_000


@dataclass(slots=True)
class Item:
    """What this validator knows of one submission. `due` (time of the next try) and `seen` are unix milliseconds."""

    admitted: AdmittedSubmission
    in_time: bool
    seen: int
    verdict: Verdict | None = None
    busy: bool = False
    failures: int = 0
    due: int = 0

    @property
    def step(self) -> int:
        """The submission's step."""
        return self.admitted.submission.step

    def is_due(self, now: int) -> bool:
        """Whether to try (again) now. A due time far in the future means that the clock has been set back since."""
        return not now < self.due <= now + LONGEST_RETRY_MS


class Items:
    """Items by submission digest. `node` is this validator."""

    def __init__(self, *, trusted: TrustedState, records: JudgedRows, node: str, clock: Clock) -> None:
        self._trusted, self._records, self._node, self._clock = trusted, records, node, clock
        self._held: dict[str, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._held.values())

    def get(self, digest: str) -> Item | None:
        """The item of a submission's digest, if it is known."""
        return self._held.get(digest)

    def readmit(self, row: Envelope, in_time: bool) -> None:
        """Restore an item after a restart. Whether it was in time stays as decided then."""
        try:
            admitted = self._trusted.readmit_submission(row)
        except (Malformed, Refusal) as error:
            log.warning("row.unreadable", digest=row.digest, why=str(error))
            return
        self._held[row.digest] = Item(admitted, in_time, self._clock())

    def due(self) -> list[Item]:
        """Items to try now, ordered to minimise changes of the engine's weights."""
        now = self._clock()
        ready = [item for item in self._held.values() if not item.busy and item.is_due(now) and self._is_ready(item)]
        return sorted(ready, key=lambda item: (item.admitted.submission.policy_step, item.step))

    def _is_ready(self, item: Item) -> bool:
        if not self.is_open(item):
            return False
        if self.refusal_by_rival(item) is not None:
            return True
        if not item.in_time:
            item.in_time = self._is_in_time(item.admitted)  # another validator may vouch for it by now
            if item.in_time:
                self._keep_rows([item])
        return item.in_time and not self._waits_for_other(item)

    def is_pending(self, item: Item) -> bool:
        """Whether this validator has given no verdict yet but will give one."""
        return item.busy or (item.in_time and item.verdict is None and not self._waits_for_other(item))

    def may_be_accepted(self, item: Item) -> bool:
        """Whether this validator has accepted it or still may."""
        verdict = item.verdict
        said = verdict is not None and (verdict.outcome == "accept" or Reason(verdict.reason) in PASSING)
        return said or self.is_pending(item)

    def note_new(self) -> None:
        """Register submissions seen for the first time. Whether one is in time or late is
        decided once and remembered."""
        fresh = [item for digest, item in self._trusted.submissions.items() if digest not in self._held]
        for admitted in fresh:
            self._held[admitted.digest] = Item(admitted, self._is_in_time(admitted), self._clock())
        if fresh:
            self._keep_rows([self._held[admitted.digest] for admitted in fresh])

    def _keep_rows(self, items: Iterable[Item]) -> None:
        rows = [(item.admitted.submission, item.admitted.row, item.in_time) for item in items]
        steps = {submission.step for submission, _, _ in rows}
        self._records.keep_rows(rows, [self._trusted.opened[step] for step in steps if step in self._trusted.opened])

    def _is_in_time(self, admitted: AdmittedSubmission) -> bool:
        head = self._trusted.head
        if head is None:
            return False
        standing = self._trusted.standings.get(admitted.digest)
        others = standing.verdicts.items() if standing else ()
        vouched = any(verdict.outcome == "accept" and name != self._node for name, verdict in others)
        async_level = self._trusted.spec.training.async_level
        try:
            rules.check_timing(admitted.submission, head=head, async_level=async_level, vouched=vouched)
        except Ignore:
            return False
        return True

    def is_open(self, item: Item) -> bool:
        """Whether it still needs a verdict, or its verdict may be replaced."""
        verdict, digest = item.verdict, item.admitted.digest
        if verdict is None:
            return True
        if verdict.outcome == "soft":
            return Reason(verdict.reason) in PASSING
        if verdict.outcome == "fault":
            return False
        rival = self._trusted.rival(item.admitted.submission, digest) is not None
        return rival or (not verdict.audited and self._trusted.is_doubted(digest))

    def _waits_for_other(self, item: Item) -> bool:
        """Whether another submission of the same index was accepted here, or was seen
        earlier and has no verdict yet."""
        submission, digest = item.admitted.submission, item.admitted.digest
        before = True
        for other in self._trusted.known_digests(submission.node, submission.step, submission.index):
            if other == digest:
                before = False
                continue
            verdict = self._held[other].verdict if other in self._held else None
            if (verdict is None and before) or (verdict is not None and verdict.outcome == "accept"):
                return True
        return False

    def refusal_by_rival(self, item: Item) -> Finding | None:
        """The refusal due when another submission of the index was accepted, else None: soft, or a fault
        once the node repeats it."""
        submission = item.admitted.submission
        if self._trusted.rival(submission, item.admitted.digest) is None:
            return None
        if self._trusted.equivocations(submission.node) > EQUIVOCATIONS_FORGIVEN:
            return Finding("fault", Reason.REPEATED_EQUIVOCATION)
        return Finding("soft", Reason.EQUIVOCATION)

    def forget_before(self, step: int) -> list[Item]:
        """Drop items of steps below `step` that are not being judged. Returns them."""
        old = [item for item in self if item.step < step and not item.busy]
        for item in old:
            del self._held[item.admitted.digest]
        return old
