"""The worker's life-cycle as a table: which event leads from which state to which."""

from __future__ import annotations

from enum import StrEnum


class WorkerState(StrEnum):
    """What the worker is doing. Fetching the next weights and uploading the last rollouts run concurrently."""

    IDLE = "idle"  # nothing to sample now
    FETCHING = "fetching"  # has no weights that the open step may use
    SAMPLING = "sampling"
    SUBMITTING = "submitting"  # rollouts to disk and into the outbox


TRANSITIONS: dict[tuple[WorkerState, str], WorkerState] = {
    (WorkerState.IDLE, "manifest"): WorkerState.FETCHING,
    (WorkerState.IDLE, "assigned"): WorkerState.SAMPLING,
    (WorkerState.FETCHING, "weights"): WorkerState.IDLE,
    (WorkerState.SAMPLING, "group"): WorkerState.SUBMITTING,
    (WorkerState.SUBMITTING, "announced"): WorkerState.IDLE,
}
