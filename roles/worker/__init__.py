"""The worker: samples what it was assigned, proves it and submits it. Believes only the trusted state."""

from roles.worker.generation import HeldPolicy, Made, Ticket
from roles.worker.lifecycle import TRANSITIONS, WorkerState
from roles.worker.worker import Worker

__all__ = ["TRANSITIONS", "HeldPolicy", "Made", "Ticket", "Worker", "WorkerState"]
