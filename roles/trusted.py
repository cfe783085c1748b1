"""The one object that grants trust: verified envelopes in, trusted messages out, or a refusal and nothing changed. Pure.

A role obtains a head, a submission or a verdict it did not write only through the `admit_*` methods here. No clock, no
I/O: the ledger's facts come in as a `LedgerView`, rows come in as envelopes whose signatures hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dht.encoding import Message
from dht.envelope import Envelope
from dht.errors import Malformed
from ledger.records import Block, Commit, Lease, Operator, Registration, RunTerms, ValidatorSet
from roles import rules, terms
from roles.assignment import beacon_step, compute_beacon, compute_seed, is_admitted
from roles.messages import (
    CheckpointRow,
    Head,
    NodeRecord,
    OpenStep,
    Receipt,
    SealedVerdict,
    StrikeRow,
    Submission,
    TallyRow,
    UpgradeRow,
    Verdict,
    open_row,
)
from roles.objections import Objections, is_objection
from roles.rules import Ignore, Reason, Reject
from roles.spec import OperatorSpec, RunSpec
from roles.upgrades import is_of_owner

NO_HEAD = (-1, -1, -1)
"""Order (term, step, sequence) before any head."""
MAX_DIGESTS_PER_INDEX = 4
"""Distinct submissions of one (node, step, index) remembered; two already are an equivocation."""
MAX_INDICES = 4096
"""Indices of a step that are looked at, whatever limit its head says: to find the admitted index before another, each
between them is hashed (4096 take some 30 ms), for every submission. With a sensible share nobody gets that far."""
MAX_EARLY_VERDICTS = 4096
"""Verdicts of one validator on submissions not seen yet: what a lying one could fill the memory with."""
MAX_ROUNDS = 256
"""Attestations of one validator in one epoch; the lowest rounds are forgotten first."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What the ledger said last. `beacons` holds, by node, the hash of block `first_block + beacon_blocks`; `ejected` are
    nodes with a strike in force, `stakes` what is staked for a node by its wallet (base units), `judges` the validator set
    in force (None: that of the terms)."""

    terms: RunTerms
    head: Block
    commits: Mapping[int, Commit]
    registrations: Mapping[str, Registration]
    beacons: Mapping[str, str]
    ejected: frozenset[str] = frozenset()
    stakes: Mapping[str, int] = field(default_factory=dict)
    lease: Lease | None = None  # none: nobody asked the ledger, the first trainer leads the first term
    judges: ValidatorSet | None = None


@dataclass(frozen=True, slots=True)
class AdmittedSubmission:
    """A submission that passed the gate, its digest, its assignment seed, and the relays its signer named."""

    submission: Submission
    digest: str
    seed: str
    relays: tuple[str, ...]
    row: Envelope


@dataclass(slots=True)
class Standing:
    """The verdicts that stand on one submission, by validator."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    rows: dict[str, Envelope] = field(default_factory=dict)

    def count(self, outcome: str, submission: Submission, *, audited: bool = False) -> int:
        """Verdicts on this submission with this outcome (only those that audited, if asked). One that misstates what it
        judges counts for nothing."""
        return sum(
            verdict.outcome == outcome and (verdict.audited or not audited) and is_verdict_on(verdict, submission)
            for verdict in self.verdicts.values()
        )


def is_verdict_on(verdict: Verdict, submission: Submission) -> bool:
    """Whether the verdict names the submission's own node, step and index, and its units where it accepts."""
    place = (verdict.node, verdict.step, verdict.index) == (submission.node, submission.step, submission.index)
    return place and (verdict.outcome != "accept" or verdict.tokens == submission.tokens)


def _relays_in(row: Envelope) -> tuple[str, ...]:
    return tuple(row.hint.decode("ascii", "replace").split(",")) if row.hint else ()


def _operators(listed: Sequence[Operator | OperatorSpec]) -> tuple[tuple[str, str, str], ...]:
    return tuple((item.node, item.operator.lower(), item.payout.lower()) for item in listed)


def is_same_run(terms: RunTerms, spec: RunSpec, run: str) -> bool:
    """Whether the ledger's terms are the spec's: who, in which order, with which keys, paid where, by which numbers."""
    numbers = (terms.quorum, terms.epoch_checkpoints, terms.epoch_max_seconds, terms.round_seconds)
    money = (terms.epoch_budget, terms.min_stake, (terms.token or "").lower())
    epoch, rewards = spec.epoch, spec.rewards
    return (
        terms.run == run
        and _operators(terms.validators) == _operators(spec.validators)
        and _operators(terms.trainers) == _operators(spec.trainers)
        and numbers == (spec.quorum, epoch.checkpoints, epoch.max_seconds, epoch.round_seconds)
        and money == (int(rewards.budget), int(rewards.min_stake), (rewards.token or "").lower())
    )


class TrustedState:
    """Everything a role believes about a run, and why it may."""

    def __init__(self, spec: RunSpec, run: str, *, most_early: int = MAX_EARLY_VERDICTS) -> None:
        self.spec = spec
        self.run = run
        self.view: LedgerView | None = None
        self.head: Head | None = None
        self.opened: dict[int, OpenStep] = {}
        self.submissions: dict[str, AdmittedSubmission] = {}
        self.standings: defaultdict[str, Standing] = defaultdict(Standing)
        self.tallies: dict[tuple[int, int, str], tuple[TallyRow, Envelope]] = {}  # by epoch, round, validator
        self.seals: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by submission, then validator
        self._sealed_steps: dict[str, int] = {}
        self._early_seals: defaultdict[str, set[str]] = defaultdict(set)
        self._head_order = NO_HEAD
        self._opened_in: dict[int, int] = {}  # step -> the term that opened it
        self._by_index: defaultdict[tuple[str, int, int], list[str]] = defaultdict(list)
        self._accepted: dict[tuple[str, int, int], str] = {}
        self._equivocations: defaultdict[str, int] = defaultdict(int)
        self._objections = Objections()
        self._most_early = most_early
        self._early: defaultdict[str, set[str]] = defaultdict(set)  # by validator: judged, and not seen here yet

    # -- the ledger ----------------------------------------------------------------------------------------------

    def admit_view(self, view: LedgerView) -> None:
        """Take over the ledger's facts. Raises Reject when the ledger's terms are not the spec's (a foreign run)."""
        if not is_same_run(view.terms, self.spec, self.run):
            raise Reject(Reason.OLD_TERM, "the ledger's terms of this run are not the spec's")
        before, self.view = self.judges, view
        if before and before != self.judges:
            self._drop_verdicts_of_others()
        if self._head_order[0] > self.term:  # a re-organised chain took a take-over back: the leader before leads on
            self._head_order = NO_HEAD

    def _drop_verdicts_of_others(self) -> None:
        """The set of validators has changed: the word of those that left it counts no more."""
        for standing in self.standings.values():
            for signer in [signer for signer in standing.verdicts if not self.is_validator(signer)]:
                del standing.verdicts[signer], standing.rows[signer]
        self._objections.keep_only(frozenset(item.node for item in self.judges))

    def committed(self, step: int) -> str | None:
        """Manifest digest of a committed checkpoint."""
        commit = self.view.commits.get(step) if self.view else None
        return commit.manifest if commit else None

    def newest_commit(self) -> Commit | None:
        """The newest committed checkpoint."""
        commits = self.view.commits if self.view else {}
        return commits[max(commits)] if commits else None

    @property
    def lease(self) -> Lease | None:
        """Who leads, as the ledger said last; None before it did."""
        return terms.lease_of(self.view.lease, self.view.terms.trainers) if self.view else None

    @property
    def term(self) -> int:
        """The ledger's term as last seen."""
        return self.lease.term if self.lease else terms.FIRST_TERM

    def leader(self) -> str | None:
        """Node id of the leading trainer."""
        return self.lease.leader if self.lease else None

    def check_checkpoint(self, *, signer: str, term: int, step: int, manifest: str) -> None:
        """Whether a checkpoint that is not loaded yet may be spread. Raises Reject for a fenced leader's, Ignore for one
        of a term not seen yet; before the ledger was seen everything may."""
        if self.view is None or self.lease is None:
            return
        terms.check_checkpoint(
            signer=signer,
            term=term,
            step=step,
            manifest=manifest,
            commits=self.view.commits,
            lease=self.lease,
            trainers=self.view.terms.trainers,
        )

    @property
    def judges(self) -> Sequence[Operator]:
        """The validators whose word counts now: none before the ledger was seen."""
        if self.view is None:
            return ()
        return self.view.judges.validators if self.view.judges else self.view.terms.validators

    @property
    def quorum(self) -> int:
        """How many of them it takes."""
        judges = self.view.judges if self.view else None
        return judges.quorum if judges else self.spec.quorum

    def is_validator(self, node: str) -> bool:
        """Whether the ledger lists the node as a validator."""
        return any(item.node == node for item in self.judges)

    def is_ejected(self, node: str) -> bool:
        """Whether a strike of a validator quorum is in force against the node."""
        return self.view is not None and node in self.view.ejected

    def has_stake(self, node: str) -> bool:
        """Whether as much is staked for the node as the run asks for."""
        wanted = int(self.spec.rewards.min_stake)
        return not wanted or (self.view is not None and self.view.stakes.get(node, 0) >= wanted)

    def is_member(self, node: str) -> bool:
        """Whether the node may submit and upload: registered and not ejected, or an operator of the run."""
        if self.view is None or self.is_ejected(node):
            return False
        operators = (*self.judges, *self.view.terms.trainers)
        return node in self.view.registrations or any(item.node == node for item in operators)

    def may_be_stored(self, row: Envelope) -> bool:
        """Whether a DHT node that knows what we do should keep this row for others: it stands in its own place, its
        signer may say that kind of thing, and its step is not made up. A row refused is offered again by its signer."""
        try:
            message = self._open(row)
        except Malformed:
            return False
        if self.view is None:
            return True
        ahead = self.spec.training.async_level + 2  # our head may be a little old
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
        """Whether a trainer's row is not a fenced leader's. One of a term that we have not seen yet is kept too."""
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

    def seed_of(self, node: str, step: int, index: int) -> str | None:
        """Assignment seed, or None while the node's block or the beacon's checkpoint is unknown."""
        manifest = self.committed(beacon_step(step, self.spec.training.async_level))
        block = self.view.beacons.get(node) if self.view else None
        if manifest is None or block is None:
            return None
        beacon = compute_beacon(manifest, block)
        return compute_seed(run=self.run, node=node, step=step, index=index, beacon=beacon)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _open(self, row: Envelope) -> Message:
        return open_row(row, run=self.run, buckets=self.spec.buckets)

    def admit_head(self, row: Envelope) -> Head:
        """Take over a newer head of the leading trainer. Raises Malformed, Reject, or Ignore for an older one."""
        head = self._open(row)
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
            if opened.step <= head.step:  # no submission of a later step counts anyway
                self._open_step(opened, head.term)
        return head

    def reopen_step(self, opened: OpenStep) -> None:
        """Take back, from this node's own disk, a step that the leader had opened."""
        self._open_step(opened, 0)

    def _open_step(self, opened: OpenStep, term: int) -> None:
        before = self.opened.get(opened.step)
        # a share is fixed when a term opens the step; the limit only rises
        share = before.share if before is not None and term <= self._opened_in[opened.step] else opened.share
        limit = min(MAX_INDICES, max(opened.limit, before.limit if before else 0))
        self.opened[opened.step] = OpenStep(step=opened.step, share=share, limit=limit)
        self._opened_in[opened.step] = max(term, self._opened_in.get(opened.step, 0))

    def admit_submission(self, row: Envelope) -> AdmittedSubmission:
        """Stage 1 of verification, but for timing. Raises Malformed, Reject or Ignore; on any of them nothing changed."""
        submission = self._open(row)
        if not isinstance(submission, Submission) or row.signer != submission.node:
            raise Malformed("not a submission of its signer")
        if (known := self.submissions.get(row.digest)) is not None:
            return self._say_again(known, row)
        if self.view is None or submission.node not in self.view.registrations:
            raise Ignore(Reason.UNREGISTERED)
        # [IGNORE] a strike may be lifted, and stake be added: the row is looked at again then
        if self.is_ejected(submission.node):
            raise Ignore(Reason.EJECTED)
        if not self.has_stake(submission.node):
            raise Ignore(Reason.NO_STAKE)
        opened = rules.check_open(submission, head=self.head, opened=self.opened.get(submission.step))
        rules.check_counts(submission, self.spec)
        committed = self.committed(submission.policy_step)
        rules.check_policy(submission, committed=committed, async_level=self.spec.training.async_level)
        seed = self._check_place_in_sequence(submission, opened)
        return self._remember(row, submission, seed)

    def _say_again(self, known: AdmittedSubmission, row: Envelope) -> AdmittedSubmission:
        """The same submission, said again: its blob may lie with other relays by now."""
        if row.sequence > known.row.sequence:
            known = self.submissions[row.digest] = replace(known, relays=_relays_in(row), row=row)
        return known

    def _check_place_in_sequence(self, submission: Submission, opened: OpenStep) -> str:
        seed = self.seed_of(submission.node, submission.step, submission.index)
        if seed is None:
            raise Ignore(Reason.BEACON_UNKNOWN)
        if not is_admitted(seed, opened.share):
            raise Reject(Reason.NOT_ADMITTED)
        previous = self.previous_index(submission.node, submission.step, submission.index)
        known = () if previous is None else self.known_digests(submission.node, submission.step, previous)
        rules.check_predecessor(submission, previous=previous, known=known)
        return seed

    def _remember(self, row: Envelope, submission: Submission, seed: str) -> AdmittedSubmission:
        digests = self._by_index[(submission.node, submission.step, submission.index)]
        if len(digests) >= MAX_DIGESTS_PER_INDEX:
            raise Ignore(Reason.REPEATED_EQUIVOCATION)
        self._equivocations[submission.node] += bool(digests)
        admitted = AdmittedSubmission(submission, row.digest, seed, _relays_in(row), row)
        digests.append(row.digest)
        self.submissions[row.digest] = admitted
        for early in (*self._early.values(), *self._early_seals.values()):
            early.discard(row.digest)
        self._settle(row.digest)  # its verdicts may have come first
        return admitted

    def readmit_submission(self, row: Envelope) -> AdmittedSubmission:
        """Take back, from this node's own disk, a row it admitted before it was restarted: the step may be closed by
        now, what was in time then is in time. Raises Malformed, or Ignore while the ledger is not known."""
        submission = self._open(row)
        if not isinstance(submission, Submission) or row.signer != submission.node:
            raise Malformed("not a submission of its signer")
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
        """Digests of every submission seen for one index."""
        return tuple(self._by_index.get((node, step, index), ()))

    def equivocations(self, node: str) -> int:
        """How many times the node signed a second submission of one index."""
        return self._equivocations[node]

    def admit_verdict(self, row: Envelope) -> Verdict:
        """Take over a verdict of a validator of the run; per validator the highest sequence stands. Raises Malformed,
        Reject, or Ignore for an older one."""
        verdict = self._open(row)
        if not isinstance(verdict, Verdict):
            raise Malformed("not a verdict")
        # [REJECT] only validators of the ledger's set are counted
        if not self.is_validator(row.signer):
            raise Reject(Reason.NOT_A_VALIDATOR)
        known = self.standings.get(verdict.submission)
        before = known.rows.get(row.signer) if known else None
        if before is not None and before.sequence >= row.sequence:
            raise Ignore(Reason.LATE, "an older verdict")
        if verdict.submission not in self.submissions:
            # [IGNORE] more than an honest validator can be ahead of us; looked at again like any row that is too early
            if before is None and len(self._early[row.signer]) >= self._most_early:
                raise Ignore(Reason.GAP, "too many verdicts on submissions that were not seen")
            self._early[row.signer].add(verdict.submission)
        standing = self.standings[verdict.submission]
        standing.verdicts[row.signer] = verdict
        standing.rows[row.signer] = row
        self._objections.note(verdict.submission, standing.verdicts, quorum=self.quorum)
        self._settle(verdict.submission)
        return verdict

    def admit_seal(self, row: Envelope) -> SealedVerdict:
        """Take over a validator's seal on a submission; the first stands. Raises Malformed, Reject, or Ignore for another
        one, and for more of them than an honest validator can be ahead of us."""
        sealed = self._open(row)
        if not isinstance(sealed, SealedVerdict):
            raise Malformed("not a seal")
        # [REJECT] only validators of the ledger's set are counted
        if not self.is_validator(row.signer):
            raise Reject(Reason.NOT_A_VALIDATOR)
        if row.signer in self.seals.get(sealed.submission, ()):
            raise Ignore(Reason.LATE, "sealed already")
        if sealed.submission not in self.submissions:
            if len(self._early_seals[row.signer]) >= self._most_early:
                raise Ignore(Reason.GAP, "too many seals on submissions that were not seen")
            self._early_seals[row.signer].add(sealed.submission)
        self.seals[sealed.submission][row.signer] = sealed.seal
        self._sealed_steps[sealed.submission] = sealed.step
        return sealed

    def admit_tally(self, row: Envelope) -> TallyRow:
        """Take over a validator's attestation; whether its signature holds the ledger says. Raises Malformed, Reject, or
        Ignore for one known already."""
        tally = self._open(row)
        if not isinstance(tally, TallyRow):
            raise Malformed("not a tally")
        operators = {item.node: item.operator for item in self.judges}
        # [REJECT] only validators of the ledger's set attest, each with its own operator key
        if operators.get(row.signer, "").lower() != tally.operator.lower():
            raise Reject(Reason.NOT_A_VALIDATOR)
        # [IGNORE] once per epoch and round: the first stands
        if (tally.epoch, tally.round, row.signer) in self.tallies:
            raise Ignore(Reason.LATE, "attested already")
        self.tallies[(tally.epoch, tally.round, row.signer)] = (tally, row)
        theirs = [place for place in self.tallies if (place[0], place[2]) == (tally.epoch, row.signer)]
        if len(theirs) > MAX_ROUNDS:
            del self.tallies[min(theirs)]
        return tally

    def _settle(self, digest: str) -> None:
        admitted = self.submissions.get(digest)
        if admitted is not None and self._has_quorum(admitted):
            item = admitted.submission
            self._accepted.setdefault((item.node, item.step, item.index), digest)  # the first to reach quorum stands

    def _has_quorum(self, admitted: AdmittedSubmission) -> bool:
        standing, submission = self.standings.get(admitted.digest), admitted.submission
        if standing is None or standing.count("accept", submission) < self.quorum:
            return False
        # a fault is answered by a quorum of accepts that audited
        if standing.count("fault", submission) == 0:
            return True
        return standing.count("accept", submission, audited=True) >= self.quorum

    def is_accepted(self, digest: str) -> bool:
        """Whether a quorum stands behind this submission, and it was the first of its (node, step, index) to get there."""
        admitted = self.submissions.get(digest)
        if admitted is None or not self._has_quorum(admitted):
            return False
        submission = admitted.submission
        return self._accepted.get((submission.node, submission.step, submission.index), digest) == digest

    def disputed(self) -> frozenset[str]:
        """Digests of submissions with a fault verdict that no quorum of audited acceptances answers."""
        return frozenset(
            digest
            for digest, standing in self.standings.items()
            if any(verdict.outcome == "fault" for verdict in standing.verdicts.values())
            and not self._is_answered(digest, standing)
        )

    def is_doubted(self, digest: str) -> bool:
        """Whether somebody calls it a fault, or audited and refused it and may oblige others by that, and no quorum of
        audited acceptances answers."""
        standing = self.standings.get(digest)
        if standing is None or self._is_answered(digest, standing):
            return False
        seen = len(self.submissions)
        return any(
            said.outcome == "fault" or (is_objection(said) and self._objections.obliges(digest, validator, seen=seen))
            for validator, said in standing.verdicts.items()
        )

    def _is_answered(self, digest: str, standing: Standing) -> bool:
        admitted = self.submissions.get(digest)
        if admitted is None:  # not seen here, so what the verdicts say of it cannot be compared
            return sum(v.outcome == "accept" and v.audited for v in standing.verdicts.values()) >= self.quorum
        return standing.count("accept", admitted.submission, audited=True) >= self.quorum

    def rival(self, submission: Submission, digest: str) -> str | None:
        """The other submission of the same index that was accepted first, if any."""
        other = self._accepted.get((submission.node, submission.step, submission.index))
        return other if other != digest else None

    def accepted(self) -> Iterator[AdmittedSubmission]:
        """Every accepted submission, in the order admitted."""
        return (item for digest, item in list(self.submissions.items()) if self.is_accepted(digest))

    def forget_before(self, step: int) -> None:
        """Drop submissions and verdicts of steps below `step`: memory stays bounded by the open window and the epoch."""
        for digest in [d for d, item in self.submissions.items() if item.submission.step < step]:
            del self.submissions[digest]
        for digest in [d for d, s in self.standings.items() if all(v.step < step for v in s.verdicts.values())]:
            for signer in self.standings.pop(digest).verdicts:
                self._early[signer].discard(digest)
            self._objections.forget(digest)
        for digest in [d for d, sealed in self._sealed_steps.items() if sealed < step]:
            del self._sealed_steps[digest]
            for signer in self.seals.pop(digest, {}):
                self._early_seals[signer].discard(digest)
        by_place: tuple[dict[tuple[str, int, int], Any], ...] = (self._by_index, self._accepted)
        for places in by_place:
            for place in [p for p in places if p[1] < step]:
                del places[place]
        for old in [s for s in self.opened if s < step]:
            del self.opened[old]
            del self._opened_in[old]

    def forget_tallies_before(self, epoch: int) -> None:
        """Drop attestations of epochs that are final."""
        for place in [p for p in self.tallies if p[0] < epoch]:
            del self.tallies[place]
