"""A validator that accepts everything, for tests of worker and trainer alone."""

from __future__ import annotations

from roles.announce import Voice
from roles.messages import Verdict
from roles.observer import Observer
from roles.trusted import AdmittedSubmission, TrustedState


class AutoValidator:
    """Signs ACCEPT once for each submission, or what `outcome_of` returns; None leaves it unjudged."""

    def __init__(self, *, trusted: TrustedState, observer: Observer, voice: Voice) -> None:
        self._trusted, self._observer, self._voice = trusted, observer, voice
        self._judged: set[str] = set()

    async def run(self) -> None:
        watch = self._observer.watch()
        while True:
            for digest, item in list(self._trusted.submissions.items()):
                if digest not in self._judged:
                    self._judged.add(digest)
                    await self._voice.announce(self._accept(item), keep_seconds=600)
            await watch.changed(1.0)

    def _accept(self, item: AdmittedSubmission) -> Verdict:
        submission = item.submission
        return Verdict(
            run=submission.run,
            submission=item.digest,
            node=submission.node,
            step=submission.step,
            index=submission.index,
            outcome="accept",
            reason=0,
            audited=True,
            tokens=submission.tokens,
        )
