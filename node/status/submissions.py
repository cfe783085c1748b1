"""The history of each submission: sampled, sent, checked by whom, accepted or refused and why, credited in which tally.

Two kinds of events report it, in any order: the worker's own (`submission.*`) and the validators' (`verdict.signed`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from node.status.tables import Row, Tables
from roles.rules import SENTENCES, Reason

Event = Mapping[str, Any]
TABLE = "submission"
DECIDED = {
    "submission.accepted": "accepted",
    "submission.refused": "refused",
    "submission.unjudged": "unjudged",
    "submission.dropped": "dropped",
}
"""Events by which a worker reports what became of its submission."""
DIGESTS = 8_000
"""Submissions whose verdicts are still counted; a story has fewer."""
VOTES_SHOWN = 16
WAITING = "waiting"


class Submissions:
    """The submissions in `tables`. `quorum` verdicts decide one (0: unknown, so only its worker's events count)."""

    def __init__(self, tables: Tables, *, tell: Callable[[Row, str, str], None]) -> None:
        self.quorum = 0
        self._tables, self._tell = tables, tell
        self._keys: OrderedDict[str, str] = OrderedDict()  # digest -> key of its row
        self._votes: dict[str, dict[str, Row]] = {}  # key -> validator -> verdict

    def take(self, event: Event, *, by: str, worker: str) -> tuple[str, bool]:
        """Add an event of a submission. Returns the key of its row, and whether it is a
        validator's first verdict on it."""
        kind, digest = str(event["event"]), str(event.get("submission", ""))
        key = self._key(f"{worker}/{event.get('step')}/{event.get('index')}", digest)
        fields: dict[str, Any] = {"worker": worker, "step": event.get("step"), "index": event.get("index")}
        fields |= {name: event[name] for name in ("policy_step", "tokens", "reward", "relays") if name in event}
        if digest:
            fields["digest"] = digest
        at, is_first = float(event.get("ts", 0.0)), by not in self._votes.get(key, ())
        if kind == "submission.made":
            fields["made"] = at
        elif kind == "submission.sent":
            fields["sent"] = self._tables.get(TABLE, key).get("sent", at)
        elif kind == "verdict.signed":
            fields |= self._vote(key, event, by)
        if kind in DECIDED:
            self._decide(key, fields, DECIDED[kind], str(event.get("reason") or event.get("why") or ""), at)
        elif kind == "verdict.signed" and self.quorum:
            self._count(key, fields, at)
        held = self._tables.get(TABLE, key)
        self._tables.put(TABLE, key, {"outcome": WAITING, "seen": at, **held, **fields})
        return key, is_first and kind == "verdict.signed"

    def credit(self, epoch: int, key: str) -> None:
        """Mark a submission as credited in the final tally of that epoch."""
        if self._tables.get(TABLE, key):
            self._tables.update(TABLE, key, epoch=epoch)

    def _key(self, place: str, digest: str) -> str:
        """The row key for this place; a second submission for the same place gets another one."""
        if not digest:
            return place
        if digest not in self._keys:
            held = self._tables.get(TABLE, place).get("digest", digest)
            self._keys[digest] = place if held == digest else f"{place}/{digest[:8]}"
            if len(self._keys) > DIGESTS:
                _, old = self._keys.popitem(last=False)
                self._votes.pop(old, None)
        return self._keys[digest]

    def _vote(self, key: str, event: Event, by: str) -> dict[str, Any]:
        votes = self._votes.setdefault(key, {})
        wanted = ("outcome", "reason", "detail", "seconds")
        if by not in votes or votes[by].get("outcome") != event.get("outcome"):  # otherwise a repeat
            votes[by] = {"by": by, "at": event.get("ts"), **{name: event[name] for name in wanted if name in event}}
        return {"votes": list(votes.values())[:VOTES_SHOWN]}

    def _count(self, key: str, fields: dict[str, Any], at: float) -> None:
        votes = self._votes[key].values()
        accepts = sum(vote.get("outcome") == "accept" for vote in votes)
        if accepts >= self.quorum:
            self._decide(key, fields, "accepted", "", at)
        elif len(votes) - accepts >= self.quorum:
            reasons = Counter(str(vote.get("reason", "")) for vote in votes if vote.get("outcome") != "accept")
            self._decide(key, fields, "refused", reasons.most_common(1)[0][0], at)

    def _decide(self, key: str, fields: dict[str, Any], outcome: str, reason: str, at: float) -> None:
        """Set the outcome. Once accepted, a submission stays accepted, whatever arrives later."""
        held = self._tables.get(TABLE, key)
        before = str(held.get("outcome", WAITING))
        if before == "accepted" or before == outcome:
            return
        fields |= {"outcome": outcome, "reason": reason, "decided": at}
        if why := sentence_of(reason):
            fields["why"] = why
        self._tell({**held, **fields}, before, outcome)


def sentence_of(reason: str) -> str:
    """What a reason means; empty for one that this version does not know."""
    known = Reason.__members__.get(reason.upper())
    return SENTENCES.get(known, "") if known is not None else ""
