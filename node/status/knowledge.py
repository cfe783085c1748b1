"""What a single node knows beyond its own events: the run's terms, the participants, and the rows it has admitted.

Read only while somebody watches, at most once a second, and only the newest rows, because a
node of a large run holds many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from dht.identity import NodeId
from node.status.story import Story
from roles.rules import name_of
from roles.spec import RunSpec
from roles.trusted import AdmittedSubmission, Standing, TrustedState

SECONDS, WATCHED_SECONDS = 1.0, 20.0
NEWEST = 500


class Relay(Protocol):
    """A relay as listed in the relay book."""

    @property
    def node(self) -> NodeId: ...


class Knowledge:
    """Adds what a trusted state holds to a story. `relays` returns those known now."""

    def __init__(self, story: Story, trusted: TrustedState, relays: Callable[[], Sequence[Relay]]) -> None:
        self._story, self._trusted, self._relays = story, trusted, relays
        self._told: dict[tuple[str, str], str] = {}  # (submission, validator) -> outcome
        self._at = float("-inf")
        self._describe(trusted.spec)

    def _describe(self, spec: RunSpec) -> None:
        self._story.describe(run=spec.run_id, title=spec.name, quorum=spec.quorum, steps=spec.training.steps)
        for role, listed in (("trainer", spec.trainers), ("validator", spec.validators)):
            for item in listed:
                self._tell_node(item.node, role)

    def _tell_node(self, node: str, role: str) -> None:
        name = self._story.name_of(node)
        if not self._story.tables.get("node", name):
            self._story.set_node(name, role=role, state="elsewhere", id=node)

    @property
    def is_watched(self) -> bool:
        """Whether the page was requested within the last `WATCHED_SECONDS`."""
        return time.monotonic() - self._at < WATCHED_SECONDS

    def refresh(self) -> None:
        """Add what is new to the story, at most every `SECONDS`."""
        now = time.monotonic()
        if now - self._at < SECONDS:
            return
        self._at = now
        for relay in self._relays():
            self._tell_node(relay.node, "relay")
        self._tell_progress()
        for digest in list(islice(reversed(self._trusted.submissions), NEWEST))[::-1]:
            self._tell_submission(digest, self._trusted.submissions[digest])
        if len(self._told) > 100 * NEWEST:
            self._told.clear()

    def _tell_progress(self) -> None:
        head, view = self._trusted.head, self._trusted.view
        self._story.describe(
            step=head.step if head else 0,
            head_state=head.state if head else None,
            block=view.head.number if view else None,
        )

    def _tell_submission(self, digest: str, admitted: AdmittedSubmission) -> None:
        submission, worker = admitted.submission, self._story.name_of(admitted.submission.node)
        place = {"step": submission.step, "index": submission.index, "submission": digest, "node": submission.node}
        place |= {"tokens": submission.tokens, "ts": time.time()}
        if (digest, "") not in self._told:
            self._told[digest, ""] = "sent"
            self._tell_node(submission.node, "worker")
            self._story.see(worker, {"event": "submission.sent", "policy_step": submission.policy_step, **place})
        standing: Standing | None = self._trusted.standings.get(digest)
        for validator, verdict in (standing.verdicts if standing else {}).items():
            if self._told.get((digest, validator)) != verdict.outcome:
                self._told[digest, validator] = verdict.outcome
                said = {"outcome": verdict.outcome, "reason": name_of(verdict.reason)}
                self._story.see(self._story.name_of(validator), {"event": "verdict.signed", **place, **said})
