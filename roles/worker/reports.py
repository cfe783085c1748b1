"""Logs the outcome of each of a worker's own submissions, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import structlog

from roles.messages import Submission, Verdict
from roles.rules import PASSING, SENTENCES, Reason, name_of
from roles.trusted import TrustedState

log = structlog.get_logger()


class Reports:
    """Sent submissions that have no final verdict yet."""

    def __init__(self, trusted: TrustedState) -> None:
        self._trusted = trusted
        self._open: dict[str, Submission] = {}

    def expect(self, digest: str, submission: Submission) -> None:
        """Register a submission, to be reported on once."""
        self._open[digest] = submission

    @property
    def open(self) -> int:
        """How many submissions have no verdict yet."""
        return len(self._open)

    def is_open(self, digest: str) -> bool:
        """Whether the submission has no verdict yet."""
        return digest in self._open

    def steps(self) -> set[int]:
        """Steps with submissions that have no verdict yet."""
        return {submission.step for submission in self._open.values()}

    def misses(self, digest: str) -> int:
        """How many validators report its blob missing."""
        return sum(verdict.reason == Reason.BLOB_MISSING for verdict in self._refusals(digest))

    def is_heard(self, digest: str) -> bool:
        """Whether any validator has given a verdict on it."""
        standing = self._trusted.standings.get(digest)
        return standing is not None and bool(standing.verdicts)

    def tell(self, *, at_last: bool = False) -> None:
        """Log the verdicts that have become final since the last call; with `at_last`, also those that
        might still have changed."""
        for digest, submission in list(self._open.items()):
            if self._trusted.is_accepted(digest):
                self._close(digest, "submission.accepted", submission, tokens=submission.tokens)
            elif (reason := self._refusal(digest, at_last=at_last)) is not None:
                self._close(digest, "submission.refused", submission, **_in_words(reason))

    def forget_before(self, step: int) -> None:
        """Give up on submissions of steps below `step`."""
        for digest, submission in list(self._open.items()):
            if submission.step < step:
                reason = self._refusal(digest, at_last=True)
                if reason is None:
                    self._close(digest, "submission.unjudged", submission)
                else:
                    self._close(digest, "submission.refused", submission, **_in_words(reason))

    def _close(self, digest: str, event: str, submission: Submission, **fields: object) -> None:
        del self._open[digest]
        log.info(event, step=submission.step, index=submission.index, submission=digest, **fields)

    def _refusals(self, digest: str) -> Iterator[Verdict]:
        standing = self._trusted.standings.get(digest)
        return (v for v in standing.verdicts.values() if v.outcome != "accept") if standing else iter(())

    def _refusal(self, digest: str, *, at_last: bool) -> int | None:
        """The most frequent reason, once a quorum refuses: counting only refusals that cannot
        change, or all with `at_last`."""
        against = [v.reason for v in self._refusals(digest) if at_last or v.reason not in PASSING]
        if len(against) < self._trusted.quorum:
            return None
        return Counter(against).most_common(1)[0][0]


def _in_words(number: int) -> dict[str, str]:
    return {"reason": name_of(number), "why": SENTENCES.get(number, "for a reason that this version does not know")}
