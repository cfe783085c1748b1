"""What proposed tallies leave out, as one validator sees it, and for how long it objects.

A proposal that lacks more than a tenth of what it could contain is not attested while other validators have their turns
to propose. Absence at one validator proves nothing, however, since honest ones may know different things. A later
round's proposal is therefore attested whatever it lacks, and the epoch closes.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from roles.ports import Clock
from roles.spec import RunSpec
from roles.tally import TallyBody, TallyContext, is_much, omitted_tokens
from roles.validator.gathering import Gathering

log = structlog.get_logger()

SPREAD_MS = 3_000
"""How long it may take until the other validators know what one of them knows."""
TURNS = 2
"""How many turns to propose each validator gets meanwhile: a proposer may spend its first turn waiting."""


class Omissions:
    """The omissions of one epoch at a time. Call `look` before a proposal is judged."""

    def __init__(self, *, spec: RunSpec, gathering: Gathering, clock: Clock) -> None:
        self._spec, self._gathering, self._clock = spec, gathering, clock
        self._closings: dict[int, tuple[int, int]] = {}  # by closing block: round and time of the first sight
        self._proposed: dict[str, int] = {}  # by blob: when a proposal was first seen

    def forget(self) -> None:
        """Start over: another epoch begins."""
        self._closings.clear()
        self._proposed.clear()

    def look(self, rounds: Mapping[int, int]) -> None:
        """Record what is accepted by now, and the blocks at which the epoch may close with the round of each."""
        self._gathering.note()
        for block, number in rounds.items():
            self._closings.setdefault(block, (number, self._clock()))

    def see(self, blob: str) -> None:
        """Note when a proposal arrived."""
        self._proposed.setdefault(blob, self._clock())

    def forbid(self, blob: str, body: TallyBody, context: TallyContext) -> bool:
        """Whether this otherwise valid proposal lacks so much that it must not be attested."""
        if body.round >= self._patient_until(context):
            return False
        held = self._gathering.held(context, before=self._known_by(blob, body, context))
        omitted = omitted_tokens(body, context, held)
        if not is_much(omitted, body, context.parent):
            return False
        log.warning(
            "tally.incomplete",
            epoch=body.epoch,
            round=body.round,
            proposer=context.proposer(body.round),
            tokens=omitted,
        )
        return True

    def _patient_until(self, context: TallyContext) -> int:
        """The first round whose proposals are attested whatever they lack."""
        first, _ = self._closings[context.closing_block]
        waiting = -(-self._spec.checks.audit_window // self._spec.epoch.round_seconds)
        return first + waiting + TURNS * len(context.in_force)

    def _known_by(self, blob: str, body: TallyBody, context: TallyContext) -> int:
        """The moment such that the proposer must have known everything accepted here before it.

        With an audit window, that is what had passed its audits when the proposal came, or was accepted no later than
        something the proposal contains. Without one, it is everything that was there at the close."""
        window = 1000 * self._spec.checks.audit_window
        newest = self._gathering.accepted_last(frozenset(body.credited[-1]))
        known = max(newest, self._proposed[blob] - window) - SPREAD_MS
        return known if window else max(known, self._closings[context.closing_block][1] + 1)
