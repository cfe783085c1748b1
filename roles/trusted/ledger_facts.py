"""The ledger's facts about a run and what follows from them alone: validators, leader, members, assignment seeds. Pure."""

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
    """What the ledger said last. `beacons` holds, by node, the hash of block `first_block + beacon_blocks`; `ejected` are
    nodes with a strike in force, `stakes` what is staked for a node by its wallet (base units), `judges` the validator set
    in force (None: that of the terms). A key that was replaced stands for the node all the same."""

    terms: RunTerms
    head: Block
    commits: Mapping[int, Commit]
    registrations: Mapping[str, Registration]
    beacons: Mapping[str, str]
    ejected: frozenset[str] = frozenset()
    stakes: Mapping[str, int] = field(default_factory=dict)
    lease: Lease | None = None  # none: nobody asked the ledger, the first trainer leads the first term
    judges: ValidatorSet | None = None
    _by_key: dict[str, Registration] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index registrations by every key of a node, replaced ones included."""
        self._by_key.update(by_any_key(self.registrations))

    def registration_of(self, key: str) -> Registration | None:
        """The registration of the node that has this key, or had it."""
        return self._by_key.get(key)

    def root_of(self, key: str) -> str:
        """The first key of the node that has this key, or had it; a stranger's is its own."""
        held = self.registration_of(key)
        return held.root if held is not None else key


class LedgerFacts:
    """The ledger as last seen. Before it was, nothing is believed: `view` is None."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.run = spec.run_id
        self._terms = terms_of(spec)
        self.view: LedgerView | None = None

    def admit_view(self, view: LedgerView) -> None:
        """Take over the ledger's facts. Raises Reject when the ledger's terms are not the spec's (a foreign run)."""
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
        """Who leads, as the ledger said last; None before it did."""
        return terms.lease_of(self.view.lease, self.view.terms.trainers) if self.view else None

    @property
    def term(self) -> int:
        """The ledger's term as last seen."""
        return self.lease.term if self.lease else FIRST_TERM

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
        """Assignment seed, or None while the node's block or the beacon's checkpoint is unknown."""
        manifest = self.committed(beacon_step(step, self.spec.training.async_level))
        held = self.view.registration_of(node) if self.view else None
        block = self.view.beacons.get(held.node) if self.view and held else None
        if manifest is None or held is None or block is None:
            return None
        beacon = compute_beacon(manifest, block)
        # the first key's, whatever key it has now: a key made when the beacon's block is known could be ground
        return compute_seed(run=self.run, node=held.root, step=step, index=index, beacon=beacon)

    def root_of(self, node: str) -> str:
        """The first key of the node that has this key, or had it: what is counted of a node goes by that."""
        return self.view.root_of(node) if self.view else node

    def open(self, row: Envelope) -> Message:
        """The message in a row of this run. Raises Malformed."""
        return open_row(row, run=self.run, buckets=self.spec.buckets)

    def open_submission(self, row: Envelope) -> Submission:
        """The submission in a row of this run. Raises Malformed."""
        return open_submission(row, run=self.run, buckets=self.spec.buckets)
