"""The one object that grants trust: verified envelopes in, trusted messages out, or a refusal and no change. Pure.

A role obtains a head, a submission or a verdict that it did not write only through the `admit_*` methods here. No clock
and no I/O: the ledger's facts arrive as a `LedgerView`, rows as envelopes whose signatures have been verified.
"""

from __future__ import annotations

from dht.envelope import Envelope
from dht.errors import Malformed
from roles import terms
from roles.messages import (
    CheckpointRow,
    Head,
    NodeRecord,
    Receipt,
    SealedVerdict,
    StrikeRow,
    Submission,
    TallyRow,
    UpgradeRow,
    Verdict,
)
from roles.rules import Ignore, Reason, Reject
from roles.spec import RunSpec
from roles.trusted.ledger_facts import LedgerView
from roles.trusted.verdicts import MAX_EARLY_VERDICTS, Verdicts
from roles.upgrades import is_of_owner

NO_HEAD = (-1, -1, -1)
"""The order (term, step, sequence) that precedes every head."""
MAX_ROUNDS = 256
"""Attestations kept per validator and epoch; the lowest rounds are dropped first."""


class TrustedState(Verdicts):
    """Everything a role believes about a run, and why. `LedgerFacts`, `Submissions` and `Verdicts` each hold a part and
    build on each other."""

    def __init__(self, spec: RunSpec, *, most_early: int = MAX_EARLY_VERDICTS) -> None:
        super().__init__(spec, most_early=most_early)
        self.tallies: dict[tuple[int, int, str], tuple[TallyRow, Envelope]] = {}  # by epoch, round, validator
        self._head_order = NO_HEAD

    def admit_view(self, view: LedgerView) -> None:
        """Adopt the ledger's facts. Raises Reject when the ledger's terms differ from the spec's (a foreign run)."""
        super().admit_view(view)
        if self._head_order[0] > self.term:  # a re-organisation undid a take-over: the earlier leader leads again
            self._head_order = NO_HEAD

    def may_be_stored(self, row: Envelope) -> bool:
        """Whether a DHT node with this state should store the row for others: its key and subkey are right, its signer
        may sign that kind, and its step is plausible. The signer offers a refused row again."""
        try:
            message = self.open(row)
        except Malformed:
            return False
        if self.view is None:
            return True
        ahead = self.spec.training.async_level + 2  # our head may be slightly out of date
        if (
            isinstance(message, Submission | Verdict | SealedVerdict | Receipt)
            and self.head
            and message.step > self.head.step + ahead
        ):
            return False
        match message:
            case Head() | CheckpointRow():
                return self._may_be_led_by(row.signer, message)
            case Verdict() | TallyRow() | SealedVerdict() | StrikeRow():
                return self.is_validator(row.signer)
            case Submission() | Receipt():
                return self.is_member(row.signer)
            case UpgradeRow():
                return is_of_owner(message, self.spec, self.view.terms.owner)
        return isinstance(message, NodeRecord)

    def _may_be_led_by(self, signer: str, message: Head | CheckpointRow) -> bool:
        """Whether a trainer's row does not come from a fenced leader. True also for a term not seen yet."""
        if self.view is None or self.lease is None:
            return True
        trainers = self.view.terms.trainers
        try:
            if isinstance(message, CheckpointRow):
                place = {"term": message.term, "step": message.step}
                self.check_checkpoint(signer=signer, manifest=message.manifest, **place)
            else:
                terms.check_term(signer=signer, term=message.term, lease=self.lease, trainers=trainers)
        except Ignore:
            return True
        except Reject:
            return False
        return any(item.node == signer for item in trainers)

    def admit_head(self, row: Envelope) -> Head:
        """Adopt a newer head of the leading trainer. Raises Malformed, Reject, or Ignore for an older one."""
        head = self.open(row)
        if not isinstance(head, Head):
            raise Malformed("not a head")
        if self.view is None or self.lease is None:
            raise Ignore(Reason.TERM_UNKNOWN)
        # only the leader of the ledger's term says what is collected
        terms.check_term(signer=row.signer, term=head.term, lease=self.lease, trainers=self.view.terms.trainers)
        # [IGNORE] heads never go back: highest (term, step, sequence)
        order = (head.term, head.step, row.sequence)
        if order <= self._head_order:
            raise Ignore(Reason.LATE, "an older head")
        self._head_order, self.head = order, head
        for opened in head.open_steps:
            if opened.step <= head.step:  # no submission of a later step counts in any case
                self._open_step(opened, head.term)
        return head

    def admit_tally(self, row: Envelope) -> TallyRow:
        """Adopt a validator's attestation; the ledger decides whether its signature is valid. Raises Malformed, Reject,
        or Ignore for one already known."""
        tally = self.open(row)
        if not isinstance(tally, TallyRow):
            raise Malformed("not a tally")
        operators = {item.node: item.operator for item in self.judges}
        # [REJECT] only validators of the ledger's set attest, each with its own operator key
        if operators.get(row.signer, "").lower() != tally.operator.lower():
            raise Reject(Reason.NOT_A_VALIDATOR)
        # [IGNORE] one per epoch and round: the first is kept
        if (tally.epoch, tally.round, row.signer) in self.tallies:
            raise Ignore(Reason.LATE, "attested already")
        self.tallies[(tally.epoch, tally.round, row.signer)] = (tally, row)
        theirs = [place for place in self.tallies if (place[0], place[2]) == (tally.epoch, row.signer)]
        if len(theirs) > MAX_ROUNDS:
            del self.tallies[min(theirs)]
        return tally

    def forget_tallies_before(self, epoch: int) -> None:
        """Drop attestations of epochs that are final."""
        for place in [p for p in self.tallies if p[0] < epoch]:
            del self.tallies[place]
