"""The trainer's life-cycle as a table: which event leads from which state to which."""

from __future__ import annotations

from enum import StrEnum


class TrainerState(StrEnum):
    """What the trainer's main loop is doing. Broadcast, commits and lease renewal run concurrently."""

    PREPARING = "preparing"  # base model, restart, or taking over from the previous leader
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
