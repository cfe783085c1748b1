"""How far each node's audited submissions have deviated in total, kept on disk (`roles.toploc.joined.history`).

A node over the limit is always audited and softly refused until honest work has brought it back under. It is never a
fault, because no single submission shows the others what one validator has seen of a node over weeks.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from roles.rules import Reason
from roles.spec import JoinedSpec
from roles.toploc.joined import History, history_limit
from roles.validator.records import JudgedRows
from roles.verification import Finding

log = structlog.get_logger()


class Histories:
    """Sums by node, in nats. In a run that does not judge histories, nothing is kept and no node deviates."""

    def __init__(self, joined: JoinedSpec | None, records: JudgedRows) -> None:
        self._records = records
        self._limit = (
            history_limit(submissions=joined.month, one_in=joined.alarm_one_in)
            if joined is not None and joined.alarm_one_in
            else None
        )
        self._sums = records.histories() if self._limit is not None else {}

    def deviates(self, node: str) -> bool:
        """Whether the node must always be audited."""
        return self._limit is not None and self._total(node) >= self._limit

    def _total(self, node: str) -> float:
        return History(self._sums.get(node, ())).total

    def weigh(self, finding: Finding, *, node: str, submission: str, step: int) -> Finding:
        """Add an audit's finding, once per submission. An acceptance becomes a soft refusal when the node is over the
        limit. The sums are on disk when this returns."""
        if self._limit is None or finding.evidence is None:
            return finding
        before, limit, evidence = self.deviates(node), self._limit, finding.evidence
        self._sums[node] = self._records.keep_history(
            node, submission, step, lambda sums: History(sums).after(evidence, limit=limit).sums
        )
        self._say(node, before=before)
        if finding.outcome != "accept" or not self.deviates(node):
            return finding
        detail = f"{self._total(node):.1f} nats, {limit:.1f} are too many"
        return replace(finding, outcome="soft", reason=Reason.HISTORY_DEVIATES, detail=detail, sequences=())

    def _say(self, node: str, *, before: bool) -> None:
        if self.deviates(node) is not before:
            event = "history.recovered" if before else "history.deviates"
            log.warning(event, node=node, nats=round(self._total(node), 1), limit=round(self._limit or 0.0, 1))
