"""Faults that the gate finds before anything is fetched. The row and the ledger prove them, so they are signed too."""

from __future__ import annotations

from collections import Counter

from dht.envelope import Envelope
from roles.messages import Submission, Verdict
from roles.rules import Reason, Reject
from roles.trusted import TrustedState

PROVABLE = frozenset(
    {Reason.STALE_POLICY, Reason.WRONG_POLICY, Reason.NOT_ADMITTED, Reason.WRONG_COUNTS, Reason.BLOB_TOO_LARGE}
)
PER_STEP = 4
"""Such verdicts that a node can cause per step: enough for a strike, without making us write for ever."""


class GateFaults:
    """Faults found at the gate: those still to be signed, and the verdicts on those that were."""

    def __init__(self, trusted: TrustedState) -> None:
        self._trusted = trusted
        self.rows: dict[str, Envelope] = {}  # rows waiting or signed, by digest
        self._waiting: dict[str, tuple[Submission, Reason]] = {}
        self._signed: dict[str, Verdict | None] = {}
        self._counts: Counter[tuple[str, int]] = Counter()

    def note(self, row: Envelope, refusal: Reject) -> None:
        """Record a rejected row."""
        if row.kind != "submission/1" or refusal.reason not in PROVABLE:
            return
        if row.digest in self._signed or row.digest in self._waiting:
            self.rows.setdefault(row.digest, row)  # after a restart only its verdict is known
            return
        submission = self._trusted.open_submission(row)
        self._counts[(submission.node, submission.step)] += 1
        if self._counts[(submission.node, submission.step)] <= PER_STEP:
            self._waiting[row.digest] = (submission, refusal.reason)
            self.rows[row.digest] = row

    def take(self) -> list[tuple[str, Submission, Reason]]:
        """Faults to sign now: (digest, submission, reason). Each is returned once."""
        taken = [(digest, *what) for digest, what in self._waiting.items()]
        self._signed.update(dict.fromkeys(self._waiting))
        self._waiting.clear()
        return taken

    def keep(self, verdict: Verdict) -> None:
        """Remember a signed verdict on a gate fault."""
        self._signed[verdict.submission] = verdict

    def forget_before(self, step: int) -> list[Verdict]:
        """Drop faults of steps below `step`. Returns their verdicts."""
        old = [verdict for verdict in self._signed.values() if verdict is not None and verdict.step < step]
        for verdict in old:
            del self._signed[verdict.submission]
            self.rows.pop(verdict.submission, None)
        for place in [place for place in self._counts if place[1] < step]:
            del self._counts[place]
        return old
