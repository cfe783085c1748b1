"""What proposed tallies leave out, as one validator sees it, and how long it minds.

A proposal that lacks more than a tenth of what could be in it is not attested while others have their turns to propose.
Absence at one validator proves nothing, though: where honest ones know different things, a later round's proposal is
attested whatever it lacks, and the epoch closes.
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
"""How long what one validator knows may take to reach the others."""
TURNS = 2
"""How often everybody may propose meanwhile: a proposer may spend its first turn waiting."""


class Omissions:
    """One epoch at a time. `look` comes before any proposal is judged."""

    def __init__(self, *, spec: RunSpec, gathering: Gathering, clock: Clock) -> None:
        self._spec, self._gathering, self._clock = spec, gathering, clock
        self._closings: dict[int, tuple[int, int]] = {}  # by closing block: the round and the time it was first seen in
        self._proposed: dict[str, int] = {}  # by blob: when a proposal was first seen

    def forget(self) -> None:
        """Start over: another epoch begins."""
        self._closings.clear()
        self._proposed.clear()

    def look(self, rounds: Mapping[int, int]) -> None:
        """Note what is accepted by now, and the blocks the epoch may close at, with the round of each."""
        self._gathering.note()
        for block, number in rounds.items():
            self._closings.setdefault(block, (number, self._clock()))

    def see(self, blob: str) -> None:
        """Note when a proposal arrived."""
        self._proposed.setdefault(blob, self._clock())

    def forbid(self, blob: str, body: TallyBody, context: TallyContext) -> bool:
        """Whether this proposal, which holds otherwise, lacks so much that it must not be attested."""
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
        """The first round whose proposals may lack anything."""
        first, _ = self._closings[context.closing_block]
        waiting = -(-self._spec.checks.audit_window // self._spec.epoch.round_seconds)
        return first + waiting + TURNS * len(context.in_force)

    def _known_by(self, blob: str, body: TallyBody, context: TallyContext) -> int:
        """What was accepted here before this moment, its proposer must have had: past its audits when the proposal came,
        or no later than something that is in it. Where nothing waits for audits, all that was there at the close."""
        window = 1000 * self._spec.checks.audit_window
        newest = self._gathering.accepted_last(frozenset(body.credited[-1]))
        known = max(newest, self._proposed[blob] - window) - SPREAD_MS
        return known if window else max(known, self._closings[context.closing_block][1] + 1)
