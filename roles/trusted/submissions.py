"""Open steps, and the submissions admitted to them. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from dht.envelope import Envelope
from roles import rules
from roles.assignment import is_admitted
from roles.messages import Head, OpenStep, Submission
from roles.rules import Ignore, Reason, Reject
from roles.shardcast.grants import relays_in
from roles.spec import RunSpec
from roles.trusted.ledger_facts import LedgerFacts

MAX_DIGESTS_PER_INDEX = 4
"""Distinct submissions remembered for one (node, step, index); two are already an equivocation."""
MAX_NAMED = 256
"""How many rows signed by replaced keys a node's later rows of one step may name."""
MAX_INDICES = 4096
"""Indices considered per step, whatever limit the head sets. To find the admitted index before another, every index
between them is hashed for each submission (4096 take about 30 ms). With a sensible share no node gets that far."""


@dataclass(frozen=True, slots=True)
class AdmittedSubmission:
    """A submission that passed the gate, its digest, its assignment seed, and the relays its signer named."""

    submission: Submission
    digest: str
    seed: str
    relays: tuple[str, ...]
    row: Envelope


class Submissions(LedgerFacts):
    """Steps that a head opened, and the submissions admitted to them."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.head: Head | None = None
        self.opened: dict[int, OpenStep] = {}
        self.submissions: dict[str, AdmittedSubmission] = {}
        self._opened_in: dict[int, int] = {}  # step -> the term that opened it
        self._by_index: defaultdict[tuple[str, int, int], list[str]] = defaultdict(list)
        self._equivocations: defaultdict[str, int] = defaultdict(int)
        self._named: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # by root and step

    def reopen_step(self, opened: OpenStep) -> None:
        """Restore from this node's own disk a step that the leader had opened."""
        self._open_step(opened, 0)

    def _open_step(self, opened: OpenStep, term: int) -> None:
        before = self.opened.get(opened.step)
        # a share is fixed when a term opens the step; the limit only rises
        share = before.share if before is not None and term <= self._opened_in[opened.step] else opened.share
        limit = min(MAX_INDICES, max(opened.limit, before.limit if before else 0))
        self.opened[opened.step] = OpenStep(step=opened.step, share=share, limit=limit)
        self._opened_in[opened.step] = max(term, self._opened_in.get(opened.step, 0))

    def admit_submission(self, row: Envelope) -> AdmittedSubmission:
        """Stage 1 of verification, except timing. Raises Malformed, Reject or Ignore. A refusal changes
        nothing, with one exception: the predecessor that the row names may become admissible when another key
        of the same node signed it."""
        submission = self.open_submission(row)
        if (known := self.submissions.get(row.digest)) is not None:
            return self._say_again(known, row)
        self._check_standing(row, submission)
        opened = rules.check_open(submission, head=self.head, opened=self.opened.get(submission.step))
        rules.check_counts(submission, self.spec)
        committed = self.committed(submission.policy_step)
        rules.check_policy(submission, committed=committed, async_level=self.spec.training.async_level)
        seed = self._check_place_in_sequence(submission, opened)
        return self._remember(row, submission, seed)

    def _check_standing(self, row: Envelope, submission: Submission) -> None:
        held = self.view.registration_of(submission.node) if self.view else None
        if held is None:
            raise Ignore(Reason.UNREGISTERED)
        # [IGNORE] whoever signs with a replaced key may have stolen it
        if held.node != submission.node and not self._was_handed_in_before(row, submission):
            raise Ignore(Reason.UNREGISTERED, "the node's key was replaced")
        # [IGNORE] a strike may be lifted or stake added; the row is then examined again
        if self.is_ejected(held.node):
            raise Ignore(Reason.EJECTED)
        if not self.has_stake(held.node):
            raise Ignore(Reason.NO_STAKE)

    def _was_handed_in_before(self, row: Envelope, submission: Submission) -> bool:
        """Whether a row signed by a replaced key is known to predate the replacement: a row of
        the node's new key names it."""
        return row.digest in self._named.get((self.root_of(submission.node), submission.step), ())

    def name(self, digest: str, *, node: str, step: int) -> None:
        """Record that a node with several keys names this submission as its predecessor, so that it may be admitted
        whichever key signed it."""
        held = self.view.registration_of(node) if self.view else None
        if held is not None and held.previous and len(self._named[(held.root, step)]) < MAX_NAMED:
            self._named[(held.root, step)].add(digest)

    def _say_again(self, known: AdmittedSubmission, row: Envelope) -> AdmittedSubmission:
        """Keep the newer row of a submission already admitted, since it may name other relays."""
        if row.sequence > known.row.sequence:
            known = self.submissions[row.digest] = replace(known, relays=relays_in(row.hint), row=row)
        return known

    def _check_place_in_sequence(self, submission: Submission, opened: OpenStep) -> str:
        seed = self.seed_of(submission.node, submission.step, submission.index)
        if seed is None:
            raise Ignore(Reason.BEACON_UNKNOWN)
        if not is_admitted(seed, opened.share):
            raise Reject(Reason.NOT_ADMITTED)
        previous = self.previous_index(submission.node, submission.step, submission.index)
        known = () if previous is None else self.known_digests(submission.node, submission.step, previous)
        if submission.predecessor not in known and previous is not None:
            self.name(submission.predecessor, node=submission.node, step=submission.step)
        rules.check_predecessor(submission, previous=previous, known=known)
        return seed

    def _remember(self, row: Envelope, submission: Submission, seed: str) -> AdmittedSubmission:
        root = self.root_of(submission.node)
        digests = self._by_index[(root, submission.step, submission.index)]
        if len(digests) >= MAX_DIGESTS_PER_INDEX:
            raise Ignore(Reason.REPEATED_EQUIVOCATION)
        self._equivocations[root] += bool(digests)
        admitted = AdmittedSubmission(submission, row.digest, seed, relays_in(row.hint), row)
        digests.append(row.digest)
        self.submissions[row.digest] = admitted
        return admitted

    def readmit_submission(self, row: Envelope) -> AdmittedSubmission:
        """Restore from this node's own disk a row that it admitted before a restart. The step may be closed by now, but
        a row that was in time stays in time. Raises Malformed, or Ignore while the ledger is not known."""
        submission = self.open_submission(row)
        if (known := self.submissions.get(row.digest)) is not None:
            return known
        seed = self.seed_of(submission.node, submission.step, submission.index)
        if seed is None:
            raise Ignore(Reason.BEACON_UNKNOWN)
        return self._remember(row, submission, seed)

    def previous_index(self, node: str, step: int, index: int) -> int | None:
        """The admitted index before this one, or None for the first."""
        opened = self.opened.get(step)
        for before in range(index - 1, -1, -1):
            seed = self.seed_of(node, step, before)
            if seed and opened and is_admitted(seed, opened.share):
                return before
        return None

    def known_digests(self, node: str, step: int, index: int) -> tuple[str, ...]:
        """Digests of all submissions seen for one index, signed by any key of the node."""
        return tuple(self._by_index.get((self.root_of(node), step, index), ()))

    def equivocations(self, node: str) -> int:
        """How many times the node signed a second submission for one index."""
        return self._equivocations[self.root_of(node)]

    def forget_before(self, step: int) -> None:
        """Drop everything of steps below `step`, so that memory is bounded by the open window and the epoch."""
        for digest in [d for d, item in self.submissions.items() if item.submission.step < step]:
            del self.submissions[digest]
        for place in [p for p in self._by_index if p[1] < step]:
            del self._by_index[place]
        for named in [n for n in self._named if n[1] < step]:
            del self._named[named]
        for old in [s for s in self.opened if s < step]:
            del self.opened[old]
            del self._opened_in[old]
