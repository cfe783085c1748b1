"""The trainer's life-cycle as a table: which event leads from which state to which."""

from __future__ import annotations

from enum import StrEnum

import structlog

log = structlog.get_logger()


class TrainerState(StrEnum):
    """What the trainer's main loop does. Broadcast, commit and lease go on beside it."""

    PREPARING = "preparing"  # base model, restart, or what the leader before left
    STANDING_BY = "standing by"  # another trainer leads
    COLLECTING = "collecting"
    WAITING = "waiting"  # batch full, an older checkpoint not committed yet
    STEPPING = "stepping"
    ENDED = "ended"


TRANSITIONS: dict[tuple[TrainerState, str], TrainerState] = {
    (TrainerState.PREPARING, "another leads"): TrainerState.STANDING_BY,
    (TrainerState.STANDING_BY, "took over"): TrainerState.PREPARING,
    (TrainerState.STANDING_BY, "run over"): TrainerState.ENDED,
    (TrainerState.PREPARING, "opened"): TrainerState.COLLECTING,
    (TrainerState.COLLECTING, "batch full"): TrainerState.WAITING,
    (TrainerState.WAITING, "head moved"): TrainerState.STEPPING,
    (TrainerState.STEPPING, "opened"): TrainerState.COLLECTING,
    (TrainerState.STEPPING, "last"): TrainerState.ENDED,
    (TrainerState.PREPARING, "last"): TrainerState.ENDED,
    **{(state, "fenced"): TrainerState.PREPARING for state in TrainerState},
}


class Lifecycle:
    """Where one trainer is in the table. A transition that the table lacks is a fault of ours."""

    def __init__(self) -> None:
        self.state = TrainerState.PREPARING

    def on(self, event: str) -> None:
        """Move. Raises KeyError for an event that the state does not know."""
        before, self.state = self.state, TRANSITIONS[(self.state, event)]
        log.debug("trainer.moved", before=before.value, after=self.state.value, on=event)
