"""Verdicts: built, written to disk, then announced, in that order. They are sealed first where the run requires it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from dht.errors import TransportError
from roles.announce import Voice
from roles.messages import SealedVerdict, Submission, Verdict
from roles.observer import Observer
from roles.ports import Clock
from roles.rules import Refusal
from roles.seals import new_salt, seal_of, seen_seals
from roles.trusted import TrustedState
from roles.validator.records import JudgedRows
from roles.verification import Finding

log = structlog.get_logger()

AT_ONCE = 8
OPEN_MS = 2_000
"""A sealed verdict is opened after this time, whoever else has sealed, so that a validator that is
down delays it no longer."""
LINGER_MS = 300
"""How much longer the other seals are awaited once a quorum has sealed, so that slightly slower validators earn too."""


class Signing:
    """Signs, stores and announces one validator's verdicts. In its own trusted state they count like any other's."""

    def __init__(
        self, *, trusted: TrustedState, observer: Observer, voice: Voice, records: JudgedRows, clock: Clock
    ) -> None:
        self._trusted, self._observer, self._voice = trusted, observer, voice
        self._records, self._clock = records, clock
        self._places = asyncio.Semaphore(AT_ONCE)
        self._seals: dict[str, SealedVerdict] = {}

    async def sign(
        self, submission: Submission, digest: str, finding: Finding, *, began: int, before: Verdict | None = None
    ) -> Verdict:
        """Sign a verdict and store it durably. `began` is when judging began, in unix milliseconds; `before` is the
        verdict that this one replaces."""
        verdict = build_verdict(submission, digest=digest, finding=finding)
        if self._trusted.spec.checks.seals and verdict.outcome != "soft":  # a soft verdict earns nothing
            verdict = await self._seal(verdict, before, finding)
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
        """Publish a verdict that is already on disk."""
        try:
            async with self._places:
                row = await self._voice.announce(verdict)
        except TransportError as error:
            log.info("verdict.delayed", submission=verdict.submission, why=str(error))
            return
        with suppress(Refusal):  # the row may have come back already, or this node may no longer be a validator
            self._trusted.admit_verdict(row)

    def withdraw(self, verdict: Verdict) -> None:
        """Stop publishing a verdict whose submission is final."""
        self._voice.withdraw(verdict)
        if (sealed := self._seals.pop(verdict.submission, None)) is not None:
            self._voice.withdraw(sealed)

    # -- sealing -------------------------------------------------------------------------------------------------

    async def _seal(self, verdict: Verdict, before: Verdict | None, finding: Finding) -> Verdict:
        """The verdict with its salt and the seals seen, once it may be opened. Repeating the same
        verdict opens the same seal."""
        if before is not None and before.salt and (before.outcome, before.reason) == (verdict.outcome, verdict.reason):
            return verdict.model_copy(update={"salt": before.salt, "seen": before.seen})
        verdict = verdict.model_copy(update={"salt": new_salt()})
        self._records.keep_verdict(verdict, finding.sequences)  # a restart opens exactly what was sealed
        await self._announce_seal(verdict)
        await self._until_open(verdict.submission)
        seen = seen_seals(self._trusted.seals[verdict.submission], self._voice.node)
        return verdict.model_copy(update={"seen": seen})

    async def _announce_seal(self, verdict: Verdict) -> None:
        sealed = SealedVerdict(
            run=verdict.run,
            submission=verdict.submission,
            node=verdict.node,
            step=verdict.step,
            seal=seal_of(verdict, self._voice.node),
        )
        self._seals[verdict.submission] = sealed
        try:
            async with self._places:
                row = await self._voice.announce(sealed)
        except TransportError as error:
            log.info("seal.delayed", submission=verdict.submission, why=str(error))
            return
        with suppress(Refusal):
            self._trusted.admit_seal(row)

    async def _until_open(self, digest: str) -> None:
        """Wait until all have sealed, or a quorum has and `LINGER_MS` passed, or `OPEN_MS` passed."""
        watch, began, quorum_at = self._observer.watch(), self._clock(), None
        while True:
            count, now = len(self._trusted.seals.get(digest, ())), self._clock()
            if count >= self._trusted.quorum and quorum_at is None:
                quorum_at = now
            until = min(began + OPEN_MS, began + OPEN_MS if quorum_at is None else quorum_at + LINGER_MS)
            if count >= len(self._trusted.judges) or not began <= now < until:
                return
            await watch.changed(timeout=(until - now) / 1000)


def build_verdict(submission: Submission, *, digest: str, finding: Finding) -> Verdict:
    """The verdict message of a finding."""
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
