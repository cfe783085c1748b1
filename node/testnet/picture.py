"""Aggregates the events of a testnet's nodes. Pure: events in, plain values out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from node.phrases import QUIET, phrase_of

Event = Mapping[str, Any]
BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class NodePicture:
    """One node: its last message and when (unix seconds)."""

    last: str = ""
    at: float = 0.0
    is_ready: bool = False
    starts: int = 0
    warnings: Counter[str] = field(default_factory=Counter)


class Picture:
    """The network so far. `quorum` verdicts decide a submission."""

    def __init__(self, *, quorum: int) -> None:
        self._quorum = quorum
        self._votes: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        self._tokens: dict[str, tuple[str, int]] = {}  # submission -> node, tokens
        self.nodes: defaultdict[str, NodePicture] = defaultdict(NodePicture)
        self.rewards: dict[int, float] = {}
        self.step = 0
        self.trained = 0
        self.committed = -1
        self.accepted: set[str] = set()
        self.refused: dict[str, str] = {}  # submission -> reason
        self.makers: dict[str, str] = {}  # submission -> node
        self.ejected: set[str] = set()  # nodes
        self.first_accepted: float | None = None
        self.has_ended = False

    def take(self, name: str, event: Event) -> None:
        """Add one event of the node with this name."""
        node, kind = self.nodes[name], str(event["event"])
        node.at = float(event.get("ts", 0.0))
        if event.get("level") in ("warning", "error"):
            node.warnings[kind] += 1
        if kind not in QUIET:
            node.last = _line(kind, event)
        if kind == "node.started":
            node.starts, node.is_ready = node.starts + 1, False
        node.is_ready |= kind == "node.ready"
        match kind:
            case "step.opened":
                self.step = max(self.step, int(event["step"]))
            case "batch.closed":
                self.rewards[int(event["step"])] = float(event["reward"])
            case "step.trained":
                self.trained = max(self.trained, int(event["step"]))
            case "checkpoint.committed":
                self.committed = max(self.committed, int(event["step"]))
            case "run.ended":
                self.has_ended = True
            case "node.ejected":
                self.ejected.add(str(event["node"]))
            case "verdict.signed":
                self._take_verdict(name, event, node.at)

    def _take_verdict(self, validator: str, event: Event, at: float) -> None:
        digest, outcome = str(event["submission"]), str(event["outcome"])
        self._votes[digest][validator] = (outcome, str(event["reason"]))
        self.makers[digest] = str(event["node"])
        if "tokens" in event:
            self._tokens[digest] = (str(event["node"]), int(event["tokens"]))
        outcomes = Counter(vote for vote, _ in self._votes[digest].values())
        if outcomes["accept"] >= self._quorum:
            self.accepted.add(digest)
            self.refused.pop(digest, None)
            self.first_accepted = self.first_accepted or at
        elif len(self._votes[digest]) - outcomes["accept"] >= self._quorum and digest not in self.accepted:
            self.refused[digest] = str(event["reason"])

    @property
    def reasons(self) -> Counter[str]:
        """How many submissions were refused for each reason."""
        return Counter(self.refused.values())

    def outcomes_of(self, node: str) -> tuple[int, Counter[str]]:
        """How many of a node's submissions were accepted, and how many refused for each reason."""
        accepted = sum(self.makers.get(digest) == node for digest in self.accepted)
        return accepted, Counter(reason for digest, reason in self.refused.items() if self.makers[digest] == node)

    @property
    def tokens(self) -> Counter[str]:
        """Accepted tokens by node."""
        totals: Counter[str] = Counter()
        for digest in self.accepted:
            node, count = self._tokens[digest]
            totals[node] += count
        return totals

    @property
    def reward_curve(self) -> list[float]:
        """Mean reward of each step's batch, in order."""
        return [self.rewards[step] for step in sorted(self.rewards)]


def _line(kind: str, event: Event) -> str:
    if said := phrase_of(event):
        return said[:120]
    names = ("step", "index", "policy_step", "reward", "outcome", "reason", "why", "cause", "wallet", "url")
    parts = [f"{name}={_short(event[name])}" for name in names if name in event]
    return f"{kind} {' '.join(parts)}".strip()[:96]


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if len(text) <= 48 else text[:45] + "..."


def sparkline(values: list[float], *, width: int = 60) -> str:
    """Values between 0 and 1 as bars, the newest `width` of them: [0, 0.5, 1] -> `▁▅█`."""
    top = len(BARS) - 1
    return "".join(BARS[min(top, max(0, round(value * top)))] for value in values[-width:])
