"""What became of a worker's own submissions, each told once."""

from __future__ import annotations

from collections import Counter

import structlog

from roles.messages import Submission
from roles.rules import SENTENCES, Reason
from roles.trusted import TrustedState

log = structlog.get_logger()


class Reports:
    """Open questions: submissions sent whose verdict does not stand yet."""

    def __init__(self, trusted: TrustedState) -> None:
        self._trusted = trusted
        self._open: dict[str, Submission] = {}

    def expect(self, digest: str, submission: Submission) -> None:
        """A submission was made; report on it once."""
        self._open[digest] = submission

    @property
    def open(self) -> int:
        """How many have no verdict yet."""
        return len(self._open)

    def tell(self) -> None:
        """Log the verdicts that have come to stand since the last call."""
        for digest, submission in list(self._open.items()):
            if self._trusted.is_accepted(digest):
                self._close(digest, "submission.accepted", submission, tokens=submission.tokens)
            elif (reason := self._refusal(digest)) is not None:
                self._close(digest, "submission.refused", submission, **_in_words(reason))

    def forget_before(self, step: int) -> None:
        """Give up on steps below `step`: their verdicts will not come."""
        for digest, submission in list(self._open.items()):
            if submission.step < step:
                self._close(digest, "submission.unjudged", submission)

    def _close(self, digest: str, event: str, submission: Submission, **fields: object) -> None:
        del self._open[digest]
        log.info(event, step=submission.step, index=submission.index, submission=digest, **fields)

    def _refusal(self, digest: str) -> int | None:
        """The commonest reason, once refusals are a quorum."""
        standing = self._trusted.standings.get(digest)
        against = [v.reason for v in standing.verdicts.values() if v.outcome != "accept"] if standing else []
        if len(against) < self._trusted.spec.quorum:
            return None
        return Counter(against).most_common(1)[0][0]


def _in_words(number: int) -> dict[str, str]:
    if number not in {reason.value for reason in Reason}:
        return {"reason": str(number), "why": "for a reason that this version does not know"}
    return {"reason": Reason(number).name.lower(), "why": SENTENCES[Reason(number)]}
