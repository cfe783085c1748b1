"""What an event means for the picture: which stage of work took how long, and which message went where. Pure tables.

An event in neither table is still shown as a sentence of its node, so new events need no change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Event = Mapping[str, Any]
Place = Literal["relay", "trainer", "validator", "worker", "ledger"]

STAGES: Mapping[str, str] = {
    "submission.made": "generate",
    "verdict.signed": "verify",
    "checkpoint.published": "broadcast",
    "checkpoint.pulled": "broadcast",
    "checkpoint.fetched": "broadcast",
    "step.trained": "train",
}
"""Events that end a stage which took `seconds`."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A message: what it carries between the event's node and a place (the nodes of a role, or the ledger).
    `inward` when the event's node received it."""

    carries: str
    place: Place
    inward: bool = False


FLOWS: Mapping[str, Flow] = {
    "batch.closed": Flow("rollouts", "relay", inward=True),
    "checkpoint.committed": Flow("ledger", "ledger"),
    "checkpoint.fetched": Flow("weights", "relay", inward=True),
    "checkpoint.published": Flow("weights", "relay"),
    "checkpoint.pulled": Flow("weights", "relay", inward=True),
    "node.ejected": Flow("ledger", "ledger"),
    "node.registered": Flow("ledger", "ledger"),
    "strike.attested": Flow("verdicts", "validator"),
    "submission.sent": Flow("rollouts", "relay"),
    "submission.sent_again": Flow("rollouts", "relay"),
    "tally.finalised": Flow("ledger", "ledger"),
    "verdict.sealed": Flow("verdicts", "validator"),
    "verdict.signed": Flow("verdicts", "trainer"),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of one node's work, in unix seconds."""

    stage: str
    step: int
    begun: float
    ended: float


def span_of(event: Event) -> Span | None:
    """The stage that this event ends; None when it ends none, or does not say how long it took."""
    stage, seconds, at = STAGES.get(str(event.get("event"))), event.get("seconds"), float(event.get("ts", 0.0))
    if stage is None or not isinstance(seconds, int | float) or seconds < 0:
        return None
    if isinstance(timeline := event.get("timeline"), Mapping):  # training ends before its checkpoint is saved
        at -= float(timeline.get("save", 0.0))
    step = event.get("step", event.get("policy_step", 0))
    return Span(stage, int(step), round(at - seconds, 3), round(at, 3))
