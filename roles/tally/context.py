"""The ledger's facts by which a tally is built and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dht.encoding import ZERO_DIGEST
from ledger.records import Commit, FinalRoot, Registration, by_any_key
from roles.messages import Role
from roles.spec import RunSpec
from roles.tally.body import TallyBody
from roles.tally.limits import LIMITS, TallyLimits


@dataclass(frozen=True, slots=True)
class Bench:
    """The validators whose verdicts count at some moment, and their quorum."""

    run: str
    buckets: int
    validators: Collection[str]
    quorum: int


def oldest_block(roots: Sequence[FinalRoot], parent: TallyBody | None, *, validators: int) -> int:
    """The block up to which steps are too old to be credited: n epochs back for n validators, but no further than the
    parent records what was credited. A set that has grown cannot look back to places that are no longer recorded."""
    age = min(validators, 1 + len(parent.credited) if parent else 1)
    return roots[len(roots) - age].closing_block if len(roots) >= age else -1


@dataclass(frozen=True, slots=True)
class TallyContext:
    """The last final root with its body, this epoch's closing block, and the ledger's state as of that block.

    `validators` and `quorum` are those whose verdicts count (`roles.tally.reading.bench_of`). `in_force` is the set
    that proposes and attests now, in order (none: the same). `payouts` are the wallets of validators and trainers,
    `leaders` the trainer of each term, `funds` what had been funded (base units). `published` are the sizes of
    checkpoints in bytes, by step, from their manifests; it covers at least those that receipts are about.
    """

    spec: RunSpec
    run: str
    roots: Sequence[FinalRoot]
    parent: TallyBody | None
    closing_block: int
    validators: Sequence[str]
    quorum: int
    commits: Mapping[int, Commit]
    registrations: Mapping[str, Registration]
    payouts: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[int, str] = field(default_factory=dict)
    published: Mapping[int, int] = field(default_factory=dict)
    funds: int = 0
    in_force: Sequence[str] = ()
    limits: TallyLimits = LIMITS
    _by_key: dict[str, Registration] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index registrations by every key of a node, including replaced ones."""
        self._by_key.update(by_any_key(self.registrations))

    @property
    def bench(self) -> Bench:
        """The validators whose verdicts count, with their quorum."""
        return Bench(self.run, self.spec.buckets, self.validators, self.quorum)

    @property
    def epoch(self) -> int:
        """The epoch being tallied, which equals the number of final ones."""
        return len(self.roots)

    @property
    def parent_root(self) -> str:
        """The last final root, zeros for the first epoch."""
        return self.roots[-1].root if self.roots else ZERO_DIGEST

    @property
    def parent_blob(self) -> str:
        """Digest of the last tally, zeros for the first epoch."""
        return self.roots[-1].blob if self.roots else ZERO_DIGEST

    @property
    def oldest_block(self) -> int:
        """Steps committed in this block or earlier are no longer creditable."""
        return oldest_block(self.roots, self.parent, validators=len(self.validators))

    @property
    def opening_block(self) -> int:
        """The last block of the previous epoch; -1 for the first."""
        return self.roots[-1].closing_block if self.roots else -1

    def credited(self) -> frozenset[str]:
        """Places counted in the epochs still considered."""
        return self.parent.places() if self.parent else frozenset()

    def is_creditable(self, step: int) -> bool:
        """Whether the step's commit is inside the window."""
        commit = self.commits.get(step)
        return commit is not None and self.oldest_block < commit.block <= self.closing_block

    def proposer(self, round_number: int) -> str:
        """Node id of the validator whose turn it is, among those that can attest now, whoever judged."""
        turns = self.in_force or self.validators
        return turns[(self.epoch + round_number) % len(turns)]

    def wallet_of(self, role: Role, node: str) -> str | None:
        """The wallet paid for the node in this role, as of the closing block."""
        if role in ("validator", "trainer"):
            return self.payouts.get(node)
        held = self.registration_of(node)
        return held.wallet if held else None

    def registration_of(self, node: str) -> Registration | None:
        """The registration in force of the node, or of the key that replaced it."""
        return self._by_key.get(node)

    def new_steps(self) -> dict[int, str]:
        """Steps committed in this epoch, and the trainer of each. Checkpoint 0 is the base model and nobody's work."""
        return {
            step: self.leaders[commit.term]
            for step, commit in self.commits.items()
            if step > 0 and self.opening_block < commit.block <= self.closing_block and commit.term in self.leaders
        }
