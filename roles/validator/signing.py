"""Verdicts: built, written to disk, then announced, in that order."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from dht.errors import TransportError
from roles.announce import Voice
from roles.messages import Submission, Verdict
from roles.ports import Clock
from roles.rules import Ignore
from roles.trusted import TrustedState
from roles.validator.records import JudgedRows
from roles.verification import Finding

log = structlog.get_logger()

AT_ONCE = 8


class Signing:
    """A validator's pen. Its own verdicts count in its own trusted state like anybody's."""

    def __init__(self, *, trusted: TrustedState, voice: Voice, records: JudgedRows, clock: Clock) -> None:
        self._trusted, self._voice, self._records, self._clock = trusted, voice, records, clock
        self._places = asyncio.Semaphore(AT_ONCE)

    async def sign(self, submission: Submission, digest: str, finding: Finding, *, began: int) -> Verdict:
        """Give a verdict, durably. `began` is when the judging began, in unix milliseconds."""
        verdict = build_verdict(submission, digest=digest, finding=finding)
        self._records.keep_verdict(verdict, finding.sequences)
        await self.announce(verdict)
        log.info(
            "verdict.signed",
            submission=digest,
            node=submission.node,
            step=submission.step,
            index=submission.index,
            outcome=finding.outcome,
            reason=finding.reason.name.lower(),
            detail=finding.detail,
            tokens=submission.tokens,
            seconds=round((self._clock() - began) / 1000, 3),
        )
        return verdict

    async def announce(self, verdict: Verdict) -> None:
        """Say a verdict that is on disk."""
        try:
            async with self._places:
                row = await self._voice.announce(verdict)
        except TransportError as error:
            log.info("verdict.delayed", submission=verdict.submission, why=str(error))
            return
        with suppress(Ignore):  # the row may have come back through the directory already
            self._trusted.admit_verdict(row)

    def withdraw(self, verdict: Verdict) -> None:
        """Stop saying it: what it is about is final."""
        self._voice.withdraw(verdict)


def build_verdict(submission: Submission, *, digest: str, finding: Finding) -> Verdict:
    """The message that says a finding."""
    return Verdict(
        run=submission.run,
        submission=digest,
        node=submission.node,
        step=submission.step,
        index=submission.index,
        outcome=finding.outcome,
        reason=int(finding.reason),
        audited=finding.audited,
        tokens=submission.tokens,
        statistics=finding.statistics,
    )
