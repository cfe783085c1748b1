"""What each role has earned: units, amounts, payments, and per step what was accepted, refused or is still open.

Final numbers come from the tally behind the newest root, checked against the ledger. Steps come from the signed rows in
tallies and in the DHT. Older tallies may no longer be on the relays; what could not be read is reported, not guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dht.envelope import Envelope
from dht.errors import Malformed, NodeError
from ledger.client import LedgerClient
from ledger.merkle import MerkleProof, merkle_proof
from ledger.records import FinalRoot, Leaf, Registration, ValidatorSet
from node.contributions import Get, read_final
from roles.messages import Receipt, Role, Submission, Verdict, open_row
from roles.reputation import decide
from roles.rules import name_of
from roles.seals import earning_validators
from roles.spec import RunSpec
from roles.tally import TallyBody, TallyItem, open_final_tally, place_digest, plain_leaves, sort_rows
from roles.tally.items import row_from_text
from roles.trusted import is_verdict_on

EPOCHS_READ = 64
"""How many tallies back to look for steps."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A leaf of the newest final tally, and how much of it has been paid (base units)."""

    leaf: Leaf
    claimed: int

    @property
    def claimable(self) -> int:
        """What a claim would pay now; 0 while the node has no wallet."""
        return max(0, self.leaf.amount - self.claimed) if self.leaf.wallet else 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """Every leaf of the newest final root; `root` is None before the first."""

    root: FinalRoot | None
    body: TallyBody | None
    holdings: Sequence[Holding]

    @property
    def epoch(self) -> int:
        """The root's epoch; -1 before the first."""
        return self.root.epoch if self.root else -1

    def proof_of(self, leaf: Leaf) -> MerkleProof:
        """The proof that a claim needs. Raises ValueError for a leaf that is not in the tally."""
        return merkle_proof([each.leaf for each in self.holdings], leaf)


async def read_holdings(ledger: LedgerClient, get: Get) -> Holdings:
    """The newest final tally, and the amounts paid. Raises LedgerError, TransportError, ConfigError."""
    root, body = await read_final(ledger, get)
    if body is None:
        return Holdings(None, None, ())
    paid = await ledger.paid()
    leaves = plain_leaves(body.leaves)
    return Holdings(root, body, [Holding(leaf, _paid(paid, leaf)) for leaf in leaves])


def _paid(paid: Mapping[tuple[Role, str, str], int], leaf: Leaf) -> int:
    return paid.get((leaf.role, leaf.node, leaf.wallet), 0) if leaf.wallet else 0


@dataclass(slots=True)
class StepLine:
    """One node's work in one role and step. Units are verified tokens for workers, verdicts for validators, bytes for
    relays (from receipts, before their cap) and steps for trainers. `epoch` None: not final."""

    step: int
    role: Role
    node: str
    wallet: str | None = None
    epoch: int | None = None
    accepted: int = 0
    pending: int = 0
    rejected: int = 0
    undecided: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class StepBook:
    """Lines by (step, role, node)."""

    spec: RunSpec
    registrations: Mapping[str, Registration]
    lines: dict[tuple[int, Role, str], StepLine] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def sorted(self) -> list[StepLine]:
        """Lines ordered by step, role and node."""
        return [self.lines[key] for key in sorted(self.lines)]

    def add_tally(self, body: TallyBody) -> None:
        """Add what an epoch's tally credited. Unreadable rows are skipped, because the
        root already accounts for them."""
        for item in body.items:
            self._add_item(item, body.epoch, is_accepted=True)
        for item in body.refusals:
            self._add_item(item, body.epoch, is_accepted=False)
        for text in body.receipts:
            receipt = self._open(text, "receipt/1")
            if isinstance(receipt, Receipt):
                for share in receipt.shares:
                    self._line(receipt.step, "relay", share.relay, body.epoch).accepted += share.size

    def add_commits(self, steps: Iterable[tuple[int, str]], epoch_of: Callable[[int], int | None]) -> None:
        """Add committed steps and who led. `epoch_of` gives the final epoch that contains a step, None for none yet."""
        for step, leader in steps:
            epoch = epoch_of(step)
            line = self._line(step, "trainer", leader, epoch)
            line.accepted, line.pending = (0, 1) if epoch is None else (1, 0)

    def add_rows(self, rows: Iterable[Envelope], *, judges: ValidatorSet) -> None:
        """Add rows of the DHT that are in none of the tallies read so far, as decided by the validators in force."""
        validators = [item.node for item in judges.validators]
        submissions, votes = sort_rows(rows, spec=self.spec, validators=validators)
        for digest, submission in submissions.items():
            if digest in self.known or place_digest(submission) in self.known:
                continue
            standing = {node: each for node, each in votes[digest].items() if is_verdict_on(each, submission)}
            outcome = decide(standing.values(), quorum=judges.quorum)
            line = self._line(submission.step, "worker", submission.node, None)
            if outcome == "accept":
                line.pending += submission.tokens
                for node in earning_validators(standing, sealed=self.spec.checks.seals):
                    self._line(submission.step, "validator", node, None).pending += 1
            elif outcome is None:
                line.undecided += 1
            else:
                self._reject(line, standing.values())

    def _add_item(self, item: TallyItem, epoch: int, *, is_accepted: bool) -> None:
        submission = self._open(item.submission, "submission/1")
        if not isinstance(submission, Submission):
            return
        self.known |= {row_from_text(item.submission, "submission/1").digest, place_digest(submission)}
        verdicts = {}
        for text in item.verdicts:
            verdict = self._open(text, "verdict/2")
            if isinstance(verdict, Verdict):
                verdicts[row_from_text(text, "verdict/2").signer] = verdict
        line = self._line(submission.step, "worker", submission.node, epoch)
        if is_accepted:
            line.accepted += submission.tokens
        else:
            self._reject(line, verdicts.values())
        for node in earning_validators(verdicts, sealed=self.spec.checks.seals):
            self._line(submission.step, "validator", node, epoch).accepted += 1

    @staticmethod
    def _reject(line: StepLine, verdicts: Iterable[Verdict]) -> None:
        line.rejected += 1
        line.reasons.update({name_of(each.reason) for each in verdicts if each.outcome != "accept"})

    def _line(self, step: int, role: Role, node: str, epoch: int | None) -> StepLine:
        line = self.lines.setdefault((step, role, node), StepLine(step, role, node, self._wallet(role, node)))
        line.epoch = epoch if epoch is not None else line.epoch
        return line

    def _wallet(self, role: Role, node: str) -> str | None:
        for item in (*self.spec.validators, *self.spec.trainers):
            if item.node == node and role in ("validator", "trainer"):
                return item.payout
        held = self.registrations.get(node)
        return held.wallet if held else None

    def _open(self, text: str, kind: str) -> object:
        try:
            return open_row(row_from_text(text, kind), run=self.spec.run_id, buckets=self.spec.buckets)
        except Malformed:
            return None


async def read_tallies(roots: Sequence[FinalRoot], get: Get) -> tuple[list[TallyBody], list[int]]:
    """Tallies of the last epochs, oldest first, and the epochs whose tally no relay has."""
    found: list[TallyBody] = []
    missing: list[int] = []
    for root in roots[-EPOCHS_READ:]:
        try:
            found.append(open_final_tally(await get(root.blob), root))
        except NodeError:
            missing.append(root.epoch)
    return found, missing


def epoch_finder(roots: Sequence[FinalRoot], blocks: Mapping[int, int]) -> Callable[[int], int | None]:
    """A function that finds the final epoch containing a step, by the block of its commit;
    None where there is none yet."""

    def epoch_of(step: int) -> int | None:
        return next((root.epoch for root in roots if blocks[step] <= root.closing_block), None)

    return epoch_of
