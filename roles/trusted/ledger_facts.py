"""The ledger's facts about a run and what follows from them: validators, leader, members, assignment seeds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dht.encoding import Message
from dht.envelope import Envelope
from ledger.records import FIRST_TERM, Block, Commit, Lease, Operator, Registration, RunTerms, ValidatorSet, by_any_key
from roles import terms
from roles.assignment import beacon_step, compute_beacon, compute_seed
from roles.messages import Submission, open_row, open_submission
from roles.rules import Reason, Reject
from roles.run_terms import differing_terms, terms_of
from roles.spec import RunSpec


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The ledger's latest state. `beacons` holds, by node, the hash of block `first_block + beacon_blocks`. `ejected`
    are the nodes with a strike in force. `stakes` is the amount staked for a node by its wallet (base units). `judges`
    is the validator set in force (None: that of the terms). A node's replaced keys still identify it."""

    terms: RunTerms
    head: Block
    commits: Mapping[int, Commit]
    registrations: Mapping[str, Registration]
    beacons: Mapping[str, str]
    ejected: frozenset[str] = frozenset()
    stakes: Mapping[str, int] = field(default_factory=dict)
    lease: Lease | None = None  # none: the ledger was not asked, and the first trainer leads the first term
    judges: ValidatorSet | None = None
    _by_key: dict[str, Registration] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index registrations by every key of a node, including replaced ones."""
        self._by_key.update(by_any_key(self.registrations))

    def registration_of(self, key: str) -> Registration | None:
        """The registration of the node that has, or had, this key."""
        return self._by_key.get(key)

    def root_of(self, key: str) -> str:
        """The first key of the node that has, or had, this key. An unknown key is its own root."""
        held = self.registration_of(key)
        return held.root if held is not None else key


class LedgerFacts:
    """The ledger's latest known state. `view` is None until it has been read, and nothing is believed before then."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.run = spec.run_id
        self._terms = terms_of(spec)
        self.view: LedgerView | None = None

    def admit_view(self, view: LedgerView) -> None:
        """Adopt the ledger's facts. Raises Reject when the ledger's terms differ from the spec's (a foreign run)."""
        if differing_terms(view.terms, self._terms):
            raise Reject(Reason.OLD_TERM, "the ledger's terms of this run are not the spec's")
        self.view = view

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
        """The latest known lease; None before the ledger was read."""
        return terms.lease_of(self.view.lease, self.view.terms.trainers) if self.view else None

    @property
    def term(self) -> int:
        """The latest known term of the ledger."""
        return self.lease.term if self.lease else FIRST_TERM

    def leader(self) -> str | None:
        """Node id of the leading trainer."""
        return self.lease.leader if self.lease else None

    def check_checkpoint(self, *, signer: str, term: int, step: int, manifest: str) -> None:
        """Check whether a checkpoint that is not loaded yet may be spread. Raises Reject for a fenced leader's, Ignore
        for one of a term not seen yet. Until the ledger has been read, every checkpoint may be spread."""
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
        """The validators whose verdicts count now; none until the ledger has been read."""
        if self.view is None:
            return ()
        return self.view.judges.validators if self.view.judges else self.view.terms.validators

    @property
    def quorum(self) -> int:
        """How many of `judges` make a quorum."""
        judges = self.view.judges if self.view else None
        return judges.quorum if judges else self.spec.quorum

    def is_validator(self, node: str) -> bool:
        """Whether the ledger lists the node as a validator."""
        return any(item.node == node for item in self.judges)

    def is_ejected(self, node: str) -> bool:
        """Whether a strike of a validator quorum is in force against the node."""
        return self.view is not None and node in self.view.ejected

    def has_stake(self, node: str) -> bool:
        """Whether at least the run's minimum is staked for the node."""
        wanted = int(self.spec.rewards.min_stake)
        return not wanted or (self.view is not None and self.view.stakes.get(node, 0) >= wanted)

    def is_member(self, node: str) -> bool:
        """Whether the node may submit and upload: registered and not ejected, or an operator of the run."""
        if self.view is None or self.is_ejected(node):
            return False
        operators = (*self.judges, *self.view.terms.trainers)
        return node in self.view.registrations or any(item.node == node for item in operators)

    def seed_of(self, node: str, step: int, index: int) -> str | None:
        """Assignment seed, or None while the node's beacon block or the beacon's checkpoint is unknown."""
        manifest = self.committed(beacon_step(step, self.spec.training.async_level))
        held = self.view.registration_of(node) if self.view else None
        block = self.view.beacons.get(held.node) if self.view and held else None
        if manifest is None or held is None or block is None:
            return None
        beacon = compute_beacon(manifest, block)
        # always from the first key: a later key, made when the beacon's block is known, could be ground for a good seed
        return compute_seed(run=self.run, node=held.root, step=step, index=index, beacon=beacon)

    def root_of(self, node: str) -> str:
        """The first key of the node that has, or had, this key. Everything counted per node is counted under it."""
        return self.view.root_of(node) if self.view else node

    def open(self, row: Envelope) -> Message:
        """The message in a row of this run. Raises Malformed."""
        return open_row(row, run=self.run, buckets=self.spec.buckets)

    def open_submission(self, row: Envelope) -> Submission:
        """The submission in a row of this run. Raises Malformed."""
        return open_submission(row, run=self.run, buckets=self.spec.buckets)
