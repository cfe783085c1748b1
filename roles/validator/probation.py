"""New nodes, and nodes found at fault, are always audited until enough of their submissions
have passed an audit here."""

from __future__ import annotations

from roles.validator.records import JudgedRows
from roles.verification import Finding


class Probation:
    """Consecutive audits that each node has passed with this validator, kept on disk. `length`
    0: nobody is on probation."""

    def __init__(self, length: int, records: JudgedRows) -> None:
        self._length, self._records = length, records
        self._passed = records.passed() if length else {}

    def holds(self, node: str) -> bool:
        """Whether every submission of the node must be audited."""
        return self._passed.get(node, 0) < self._length

    def note(self, finding: Finding, *, node: str) -> None:
        """Count the first verdict on a submission. A fault restarts the probation; soft refusals change nothing."""
        passed = self._passed.get(node, 0)
        if finding.outcome == "fault":
            after = 0
        else:
            after = passed + (finding.outcome == "accept" and finding.audited and passed < self._length)
        if after != passed:
            self._passed[node] = after
            self._records.keep_passed(node, after)
