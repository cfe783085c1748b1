"""Everything a node, or a whole testnet, has reported so far, as rows that a page, a terminal or a script can show.

Pure: events in, rows out. It knows neither the source of events nor the viewers. Every event, whatever its name,
becomes a sentence of its node; a few also change a step, a submission or the timeline (`stages`, `submissions`).

Tables: `facts` (one row), `node` by name, `step` by number, `submission`, `wallet`, `reason` (refusals by reason),
`span` (the timeline) and `log` (every event).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from node.phrases import QUIET, phrase_of
from node.status.stages import FLOWS, span_of
from node.status.submissions import DECIDED, WAITING, Submissions
from node.status.tables import Row, Tables

Event = Mapping[str, Any]

LIMITS = {
    "facts": 1,
    "node": 1_000,
    "step": 2_000,
    "submission": 1_000,
    "wallet": 1_000,
    "reason": 100,
    "span": 3_000,
    "log": 10_000,
}
"""Maximum rows per table, for a whole testnet."""
OF_ONE_NODE = {"submission": 500, "span": 1_000, "log": 2_000}
"""Lower limits for a single node, which may be a small relay."""
OF_SUBMISSION = ("submission.made", "submission.sent", "verdict.signed", *DECIDED)
NODE_FIELDS = ("node", "relay", "proposer", "signer")
MAX_TEXT, MAX_FIELDS = 300, 24


class Story:
    """All events so far as tables of rows. Thread-safe."""

    def __init__(self, *, limits: Mapping[str, int] | None = None) -> None:
        self.tables = Tables({**LIMITS, **(limits or {})})
        self.is_closed = False
        self.totals: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()
        """Decisions by outcome. Overturned ones stay counted, because readers would take a decrease for a restart."""
        self._submissions = Submissions(self.tables, tell=self._decided)
        self._names: dict[str, str] = {}  # node id -> name
        self._said = 0
        self._lock = threading.RLock()

    def describe(self, **facts: Any) -> None:
        """Set facts about the whole: run, quorum, kind of page."""
        with self._lock:
            self.tables.update("facts", "all", **facts)
            self._submissions.quorum = int(self.tables.get("facts", "all").get("quorum") or 0)

    def set_node(self, name: str, **fields: Any) -> None:
        """Set what is known of a node from other sources: role, state, wallet."""
        with self._lock:
            self.tables.update("node", name, **{"name": name, **fields})

    def set_wallets(self, rows: Mapping[str, Row]) -> None:
        """Set what each wallet has: `final`, `pending`, `nodes`."""
        for wallet, row in rows.items():
            self.tables.put("wallet", wallet, {"wallet": wallet, **row})

    def credit(self, epoch: int, places: Iterable[tuple[str, int, int]]) -> None:
        """Mark the submissions with these nodes, steps and indices as credited in the final tally of that epoch."""
        with self._lock:
            for node, step, index in places:
                self._submissions.credit(epoch, f"{self.name_of(node)}/{step}/{index}")

    def name_of(self, node: str) -> str:
        """The name of a node, or its shortened id."""
        return self._names.get(node) or (f"{node[:6]}..{node[-4:]}" if len(node) > 16 else node)

    def close(self) -> None:
        """Mark the story as finished, which ends the streams."""
        self.is_closed = True

    # -- events ----------------------------------------------------------------------------------------------------

    def take(self, source: str, event: Event) -> None:
        """Add one event of the node with this name."""
        at, kind = event.get("ts"), str(event.get("event", ""))
        event = {**event, "event": kind, "ts": at if isinstance(at, int | float) else 0.0}
        with self._lock:
            if kind == "node.started" and "node" in event:
                self._names[str(event["node"])] = source
            about = self._take_submission(source, event) if kind in OF_SUBMISSION else None
            self._take_step(kind, event)
            span = span_of(event)
            self._said += 1
            if span is not None:
                self.tables.put("span", str(self._said), {"source": source, **asdict(span)})
            said = phrase_of(self._with_names(event)) or _plain(event)
            self._take_node(source, kind, event, said)
            self.tables.put("log", str(self._said), _log_row(source, event, said, about))

    def see(self, source: str, event: Event) -> None:
        """Add what is known of a submission from a row in the DHT, when its node did not report it here."""
        with self._lock:
            self._take_submission(source, event)

    def _with_names(self, event: Event) -> Event:
        held = ((name, event.get(name)) for name in NODE_FIELDS)
        return {**event, **{name: self.name_of(node) for name, node in held if isinstance(node, str)}}

    def _take_submission(self, source: str, event: Event) -> str | None:
        is_verdict = event["event"] == "verdict.signed"
        worker = self.name_of(str(event.get("node"))) if is_verdict else source
        if not self.tables.get("node", worker):  # known only through its submissions
            self.set_node(worker, role="worker", state="elsewhere", id=event.get("node"))
        key, is_new = self._submissions.take(event, by=source, worker=worker)
        if is_new:
            self._add(source, judged=1)
        return key

    def _take_step(self, kind: str, event: Event) -> None:
        if "step" not in event or not isinstance(step := event["step"], int):
            return
        at = event.get("ts")
        match kind:
            case "step.opened":
                self._step(step, opened=at, policy_step=event.get("policy_step"))
            case "batch.closed":
                self._count_groups(event)
                self._step(step, closed=at, **_numbers(event, "reward", "groups", "dropped"))
            case "step.trained":
                self._step(step, trained=at, **_numbers(event))
            case "checkpoint.published":
                self._step(step, published=at, bytes=event.get("bytes"), broadcast_seconds=event.get("seconds"))
            case "checkpoint.fetched":
                self._step(step, fetched=int(event.get("full") or 0) + int(event.get("delta") or 0))
            case "checkpoint.committed":
                self._step(step, committed=at, block=event.get("block"))
            case "run.ended":
                self.describe(ended=at)
            case "submission.made":
                self._sampled(step, event)

    def _step(self, step: int, **fields: Any) -> None:
        self.tables.update("step", str(step), **{"step": step, **fields})

    def _count_groups(self, event: Event) -> None:
        """The online filter: groups that teach something, and groups whose answers all scored the same."""
        for name, field in (("groups_used", "groups"), ("groups_dropped", "dropped")):
            count = event.get(field)
            self.totals[name] += count if isinstance(count, int) else 0

    def _sampled(self, step: int, event: Event) -> None:
        """Mean reward of what workers sampled for a step. A lone worker knows no more of the reward."""
        held = self.tables.get("step", str(step))
        count = int(held.get("samples", 0))
        reward = (held.get("sampled_reward", 0.0) * count + float(event.get("reward", 0.0))) / (count + 1)
        self._step(step, samples=count + 1, sampled_reward=round(reward, 4))

    def _take_node(self, source: str, kind: str, event: Event, said: str) -> None:
        fields: dict[str, Any] = {"at": event.get("ts"), "role": event.get("role", source.partition("-")[0])}
        if kind not in QUIET:
            fields["said"] = said
        if event.get("level") in ("warning", "error"):
            self._add(source, warnings=1)
        match kind:
            case "node.started":
                fields |= {"id": event.get("node"), "version": event.get("version"), "since": event.get("ts")}
                fields["state"] = "starting"
            case "node.ready":
                fields["state"] = "ready"
            case "node.stopped":
                fields["state"] = "left"
            case "node.registered":
                fields |= {"wallet": event.get("wallet"), "linked": event.get("linked")}
            case "node.ejected":
                self.set_node(self.name_of(str(event.get("node"))), state="struck out")
            case "weights.loaded" | "checkpoint.committed":
                fields["policy_step"] = event.get("policy_step", event.get("step"))
        self.set_node(source, **fields)

    def _decided(self, row: Row, before: str, outcome: str) -> None:
        """Record that a submission's outcome has changed."""
        worker, tokens = str(row["worker"]), int(row.get("tokens") or 0)
        self.decided[outcome] += 1
        self.totals[outcome] += 1
        self._add(worker, **{outcome: 1})
        if before != WAITING:
            self.totals[before] -= 1
            self._add(worker, **{before: -1})
        if outcome == "accepted":
            self.totals["tokens"] += tokens
            self._add(worker, tokens=tokens)
        is_fault = any(vote.get("outcome") == "fault" for vote in row.get("votes", ()))
        if outcome == "refused":
            reason = str(row.get("reason") or "unknown")
            self._add(worker, faults=int(is_fault))
            self.tables.put("reason", reason, {"count": int(self.tables.get("reason", reason).get("count", 0)) + 1})
        self.describe(totals=dict(self.totals))

    def _add(self, name: str, **counts: int) -> None:
        held = self.tables.get("node", name)
        self.set_node(name, **{key: int(held.get(key) or 0) + count for key, count in counts.items()})


def _numbers(event: Event, *names: str) -> dict[str, Any]:
    """The numbers in an event; all except its place and time when none are named."""
    chosen = names or [name for name in event if name not in ("ts", "step", "level")]
    found = ((name, event.get(name)) for name in chosen)
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in found
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _log_row(source: str, event: Event, said: str, about: str | None) -> dict[str, Any]:
    kind, flow = str(event.get("event", "")), FLOWS.get(str(event.get("event", "")))
    row: dict[str, Any] = {"ts": event.get("ts"), "level": event.get("level", "info"), "source": source, "event": kind}
    row["text"] = said
    if about:
        row["about"] = about
    if flow is not None:
        row["flow"] = [flow.carries, flow.place, flow.inward]
    rest = [name for name in event if name not in ("ts", "level", "role", "event", "exception")]
    row["fields"] = {name[:64]: _bounded(event[name]) for name in rest[:MAX_FIELDS]}
    return row


def _bounded(value: Any) -> Any:
    """A value limited in size, whoever chose it."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _plain(event: Event) -> str:
    """A sentence for an event that has none: its name and first fields."""
    names = [name for name in event if name not in ("ts", "level", "role", "event", "exception", "node")]
    shown = ", ".join(f"{name} {_short(event[name])}" for name in names[:4])
    return f"{str(event.get('event', '')).replace('.', ' ').replace('_', ' ')}{': ' if shown else ''}{shown}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 48 else f"{text[:6]}..{text[-4:]}"
