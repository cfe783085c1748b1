"""Submissions that a quorum of validators found at fault, with the rows that prove it, kept for
as long as they are useful.

Tallies credit the validators behind a fault, and strikes rest on it. A node's faults add up over
epochs, so they are on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dht.encoding import decode
from dht.envelope import Envelope
from dht.errors import Malformed
from roles.messages import Submission, Verdict
from roles.tally import Contribution
from roles.tally.context import Bench
from roles.trusted import TrustedState
from roles.validator.records import JudgedRows

MOST_OF_NODE = 64
"""Faults kept per node, the newest ones: a strike needs no more."""


@dataclass(frozen=True, slots=True)
class ProvenFault:
    """One submission proven at fault."""

    submission: Submission
    proof: Contribution

    @property
    def digest(self) -> str:
        """Digest of the submission."""
        return self.proof.submission.digest

    @property
    def reason(self) -> int:
        """The reason for a strike: the lowest one when validators give several."""
        return min(decode(Verdict, row.payload).reason for row in self.proof.verdicts)

    def said_by(self, bench: Bench) -> ProvenFault | None:
        """The fault with only the bench's verdicts; None when those no longer prove it."""
        rows = tuple(row for row in self.proof.verdicts if row.signer in bench.validators)
        return replace(self, proof=replace(self.proof, verdicts=rows)) if len(rows) >= bench.quorum else None


class FaultBook:
    """Proven faults by submission digest. `gate_rows` are rows that the gate refused, by digest."""

    def __init__(self, *, trusted: TrustedState, records: JudgedRows, gate_rows: Mapping[str, Envelope]) -> None:
        self._trusted, self._records, self._gate_rows = trusted, records, gate_rows
        self.faults: dict[str, ProvenFault] = {}
        for submission, verdicts in records.faults():
            self._enter(Contribution(submission, verdicts))

    def observe(self) -> None:
        """Record the faults that have reached a quorum since the last call."""
        for digest, standing in list(self._trusted.standings.items()):
            said = {signer for signer, verdict in standing.verdicts.items() if verdict.outcome == "fault"}
            known = _signers(self.faults[digest].proof) if digest in self.faults else frozenset()
            if said <= known or len(said) < self._trusted.quorum or (row := self._row(digest)) is None:
                continue
            proof = Contribution(row, tuple(standing.rows_saying("fault", self._trusted.open_submission(row))))
            # validators that say so later count too, since others may leave the set
            is_new = len(proof.verdicts) >= self._trusted.quorum and not _signers(proof) <= known
            if is_new and (fault := self._enter(proof)) is not None:
                self._records.keep_fault(fault.submission, row, proof.verdicts)
                self._forget_oldest(fault.submission.node)

    def _row(self, digest: str) -> Envelope | None:
        admitted = self._trusted.submissions.get(digest)
        return admitted.row if admitted else self._gate_rows.get(digest)

    def _enter(self, proof: Contribution) -> ProvenFault | None:
        try:
            submission = self._trusted.open_submission(proof.submission)
            for row in proof.verdicts:
                self._trusted.open(row)
        except Malformed:  # kept by an earlier version
            return None
        fault = ProvenFault(submission, proof)
        self.faults[fault.digest] = fault
        return fault

    def _forget_oldest(self, node: str) -> None:
        theirs = sorted(
            (fault for fault in self.faults.values() if fault.submission.node == node),
            key=lambda fault: (fault.submission.step, fault.submission.index),
        )
        for fault in theirs[:-MOST_OF_NODE]:
            del self.faults[fault.digest]
            self._records.forget_fault(fault.digest)


def _signers(proof: Contribution) -> frozenset[str]:
    return frozenset(row.signer for row in proof.verdicts)
