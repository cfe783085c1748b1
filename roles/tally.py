"""The tally of an epoch: who contributed what, provably (design sections 11 and 17). Pure: builds and checks blobs.

A blob holds the full signed rows (submissions, and a quorum of verdicts on each), so anyone can check it with the
ledger's facts alone. Expiry of those rows is not checked: they were in time when they were judged.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from dht.encoding import ZERO_DIGEST, Digest, Message, Natural, decode, digest, encode, sha256
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import Malformed, NodeError
from ledger.merkle import merkle_root, sorted_leaves
from ledger.records import Commit, FinalRoot, Leaf, Proposal, Registration
from roles.messages import ROW_RULES, NodeName, Submission, Verdict, open_row
from roles.spec import EthAddress, RunSpec
from roles.trusted import is_verdict_on

MAX_BLOB = 32 * 2**20
MAX_BODY = 64 * 2**20
MAX_ITEMS = 50_000
Row = Annotated[str, Field(max_length=9600, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
"""A signed row, base64."""


class TallyFault(StrEnum):
    """Why a tally is refused."""

    TOO_LARGE = "larger than a tally may be"
    MALFORMED = "not a tally in canonical form"
    WRONG_EPOCH = "of another run, epoch, round or closing block"
    WRONG_PARENT = "does not build on the last final root"
    INVALID_ITEM = "an item is not a submission that a quorum accepted"
    NOT_CREDITABLE = "an item's step is not committed by the closing block, or too long ago"
    UNREGISTERED = "an item's node was not registered at the closing block"
    DISPUTED = "an item has an unanswered fault verdict"
    REPEATED_ITEM = "a node's index appears twice"
    CREDITED_BEFORE = "an item was credited before"
    WRONG_HISTORY = "the list of credited items is not the parent's and its own"
    WRONG_UNITS = "the leaves are not the parent's plus the items' units"
    WRONG_ROOT = "the root, the total or the digest is not that of its content"


class TallyRefused(NodeError):
    """A tally that must not be attested."""

    def __init__(self, fault: TallyFault, detail: str = "") -> None:
        self.fault = fault
        super().__init__(f"the tally is refused: {fault.value}{f' ({detail})' if detail else ''}")


class TallyItem(Message):
    """A submission and the accepting verdicts of a quorum, as signed."""

    submission: Row
    verdicts: Annotated[tuple[Row, ...], Field(min_length=1, max_length=64)]


class TallyLeaf(Message):
    """Cumulative units of one (node, wallet)."""

    node: NodeName
    wallet: EthAddress | None
    units: Annotated[int, Field(ge=0, lt=2**128)]


class TallyBody(Message):
    """What a tally blob says. `credited` holds, for the last epochs (as many as there are validators), the places
    (`place_digest`) credited in each, this epoch's last."""

    kind: Literal["tally-body/1"] = "tally-body/1"
    run: Digest
    epoch: Natural
    round: Natural
    closing_block: Natural
    parent_root: Digest
    parent_blob: Digest
    items: Annotated[tuple[TallyItem, ...], Field(max_length=MAX_ITEMS)]
    credited: Annotated[tuple[tuple[Digest, ...], ...], Field(max_length=64)]
    leaves: Annotated[tuple[TallyLeaf, ...], Field(max_length=1_000_000)]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A submission with the rows that prove it was accepted."""

    submission: Envelope
    verdicts: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class TallyContext:
    """The ledger's facts a tally is built and checked by: the last final root with its body, where this epoch closes,
    what is committed, who was registered at the closing block."""

    spec: RunSpec
    run: str
    roots: Sequence[FinalRoot]
    parent: TallyBody | None
    closing_block: int
    validators: Sequence[str]
    commits: Mapping[int, Commit]
    registrations: Mapping[str, Registration]

    @property
    def epoch(self) -> int:
        """The epoch being tallied: as many as are final."""
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
        """Steps committed in this block or before are no longer creditable: n epochs for n validators."""
        age = len(self.validators)
        return self.roots[self.epoch - age].closing_block if self.epoch >= age else -1

    def credited(self) -> frozenset[str]:
        """Places credited in the epochs that matter."""
        return frozenset(place for places in (self.parent.credited if self.parent else ()) for place in places)

    def is_creditable(self, step: int) -> bool:
        """Whether the step's commit is inside the window."""
        commit = self.commits.get(step)
        return commit is not None and self.oldest_block < commit.block <= self.closing_block

    def proposer(self, round_number: int) -> str:
        """Node id of the validator whose turn it is."""
        return self.validators[(self.epoch + round_number) % len(self.validators)]


def place_digest(submission: Submission) -> str:
    """Identity of a (node, step, index): credited at most once."""
    return digest("credit/1", submission.node, submission.step, submission.index)


def build_tally(
    context: TallyContext, contributions: Iterable[Contribution], *, round_number: int
) -> tuple[bytes, Proposal]:
    """The blob of an epoch and what validators attest. Contributions that may not be credited (see `TallyFault`) are
    left out; so is what exceeds the size of a tally: it stays creditable."""
    items: list[TallyItem] = []
    accepted: dict[str, Submission] = {}
    credited, size = context.credited(), 0
    for contribution in contributions:
        item = _pack_item(contribution)
        try:
            submission = check_item(item, context)
        except TallyRefused:
            continue
        place = place_digest(submission)
        size += len(item.submission) + sum(map(len, item.verdicts))
        if place in credited or place in accepted or len(items) == MAX_ITEMS or size > MAX_BLOB // 2:
            continue
        items.append(item)
        accepted[place] = submission
    body = TallyBody(
        run=context.run,
        epoch=context.epoch,
        round=round_number,
        closing_block=context.closing_block,
        parent_root=context.parent_root,
        parent_blob=context.parent_blob,
        items=tuple(items),
        credited=_history(context, tuple(accepted)),
        leaves=_leaves(context, accepted.values()),
    )
    blob = zlib.compress(encode(body), 6)
    return blob, proposal_of(body, blob)


def proposal_of(body: TallyBody, blob: bytes) -> Proposal:
    """What is attested of a tally."""
    leaves = _plain(body.leaves)
    return Proposal(
        run=body.run,
        epoch=body.epoch,
        round=body.round,
        closing_block=body.closing_block,
        parent_root=body.parent_root,
        root=merkle_root(leaves),
        total=sum(leaf.units for leaf in leaves),
        blob=sha256(blob),
    )


def open_tally(blob: bytes, *, most: int = MAX_BODY) -> TallyBody:
    """Parse a blob of at most `most` bytes when unpacked, in bounded memory. Raises TallyRefused."""
    if len(blob) > MAX_BLOB:
        raise TallyRefused(TallyFault.TOO_LARGE)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(blob, most)
        if not unpacker.eof:
            raise TallyRefused(TallyFault.TOO_LARGE)
        if unpacker.unused_data:
            raise TallyRefused(TallyFault.MALFORMED, "bytes after its end")
        return decode(TallyBody, data)
    except (zlib.error, Malformed) as error:
        raise TallyRefused(TallyFault.MALFORMED, str(error)[:200]) from error


def open_final_tally(blob: bytes, root: FinalRoot) -> TallyBody:
    """The body of a final root. Raises TallyRefused unless it is the one the ledger names."""
    if sha256(blob) != root.blob:
        raise TallyRefused(TallyFault.WRONG_ROOT)
    return open_tally(blob)


def check_tally(blob: bytes, proposal: Proposal, context: TallyContext, *, disputed: Collection[str] = ()) -> TallyBody:
    """Judge a proposed tally; omissions are no fault. `disputed` are digests of submissions with an unanswered fault
    verdict. Raises TallyRefused with the first fault."""
    body = open_tally(blob, most=_most_bytes(context))
    _check_header(body, proposal, context)
    accepted: dict[str, Submission] = {}
    for item in body.items:
        submission = check_item(item, context, disputed=disputed)
        place = place_digest(submission)
        if place in accepted:
            raise TallyRefused(TallyFault.REPEATED_ITEM)
        accepted[place] = submission
    if not accepted.keys().isdisjoint(context.credited()):
        raise TallyRefused(TallyFault.CREDITED_BEFORE)
    if body.credited != _history(context, tuple(accepted)):
        raise TallyRefused(TallyFault.WRONG_HISTORY)
    if body.leaves != _leaves(context, accepted.values()):
        raise TallyRefused(TallyFault.WRONG_UNITS)
    if proposal != proposal_of(body, blob):
        raise TallyRefused(TallyFault.WRONG_ROOT)
    return body


def check_item(item: TallyItem, context: TallyContext, *, disputed: Collection[str] = ()) -> Submission:
    """The submission of an item. Raises TallyRefused unless a quorum of validators accepted it and it is creditable."""
    try:
        row, submission = _open_submission(item.submission, context)
        voters = {_open_vote(text, row.digest, submission, context) for text in item.verdicts}
    except (Malformed, binascii.Error) as error:
        raise TallyRefused(TallyFault.INVALID_ITEM, str(error)[:200]) from error
    if len(voters) != len(item.verdicts) or len(voters) < context.spec.quorum:
        raise TallyRefused(TallyFault.INVALID_ITEM, f"{len(voters)} validators accepted it")
    if row.digest in disputed:
        raise TallyRefused(TallyFault.DISPUTED)
    if submission.node not in context.registrations:
        raise TallyRefused(TallyFault.UNREGISTERED)
    if not context.is_creditable(submission.step):
        raise TallyRefused(TallyFault.NOT_CREDITABLE, f"step {submission.step}")
    return submission


def _open_submission(text: str, context: TallyContext) -> tuple[Envelope, Submission]:
    row = from_bytes(base64.b64decode(text, validate=True), limit=ROW_RULES["submission/1"].max_bytes)
    message = open_row(row, run=context.run, buckets=context.spec.buckets)
    if not isinstance(message, Submission) or row.signer != message.node:
        raise Malformed("not a submission of its signer")
    return row, message


def _open_vote(text: str, submission_digest: str, submission: Submission, context: TallyContext) -> str:
    """The validator behind an accepting verdict on this submission."""
    row = from_bytes(base64.b64decode(text, validate=True), limit=ROW_RULES["verdict/2"].max_bytes)
    message = open_row(row, run=context.run, buckets=context.spec.buckets)
    if not isinstance(message, Verdict) or row.signer not in context.validators:
        raise Malformed("not a verdict of a validator")
    if message.outcome != "accept" or message.submission != submission_digest or not is_verdict_on(message, submission):
        raise Malformed("not an acceptance of this submission")
    return row.signer


def _most_bytes(context: TallyContext) -> int:
    """What an honest tally unpacks to at most: the parent's leaves and places, new items, and theirs. A lying proposer
    must not keep every validator at parsing."""
    parent = context.parent
    kept = 256 * len(parent.leaves) + 72 * sum(map(len, parent.credited)) if parent else 0
    return min(MAX_BODY, MAX_BLOB // 2 + 2**23 + kept)


def _check_header(body: TallyBody, proposal: Proposal, context: TallyContext) -> None:
    said = (body.run, body.epoch, body.round, body.closing_block)
    if said != (context.run, context.epoch, proposal.round, context.closing_block):
        raise TallyRefused(TallyFault.WRONG_EPOCH)
    if (body.parent_root, body.parent_blob) != (context.parent_root, context.parent_blob):
        raise TallyRefused(TallyFault.WRONG_PARENT)


def _history(context: TallyContext, places: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    before = context.parent.credited if context.parent else ()
    return (*before, places)[-len(context.validators) :]


def _leaves(context: TallyContext, submissions: Iterable[Submission]) -> tuple[TallyLeaf, ...]:
    """The parent's leaves plus the submissions' units, each to the wallet its node had at the closing block: linking
    later moves no leaf of the past."""
    units: Counter[tuple[str, str | None]] = Counter()
    for leaf in context.parent.leaves if context.parent else ():
        units[(leaf.node, leaf.wallet)] += leaf.units
    for submission in submissions:
        units[(submission.node, context.registrations[submission.node].wallet)] += submission.tokens
    leaves = sorted_leaves(Leaf(node, wallet, count) for (node, wallet), count in units.items())
    return tuple(TallyLeaf(node=leaf.node, wallet=leaf.wallet, units=leaf.units) for leaf in leaves)


def _plain(leaves: Iterable[TallyLeaf]) -> tuple[Leaf, ...]:
    return tuple(Leaf(leaf.node, leaf.wallet, leaf.units) for leaf in leaves)


def _pack_item(contribution: Contribution) -> TallyItem:
    verdicts = sorted(contribution.verdicts, key=lambda row: row.signer)
    return TallyItem(submission=_text(contribution.submission), verdicts=tuple(map(_text, verdicts)))


def _text(row: Envelope) -> str:
    return base64.b64encode(to_bytes(row)).decode()


def pending_contributions(
    rows: Iterable[Envelope],
    *,
    spec: RunSpec,
    run: str,
    validators: Collection[str],
    registrations: Mapping[str, Registration],
    credited: Collection[str],
) -> dict[tuple[str, str | None], int]:
    """Units accepted by a quorum but not final yet, by (node, wallet), from verified submission and verdict rows.

    `credited` are the place digests of the last final tally (`TallyBody.credited`, joined). Rows that do not parse, are
    of others than they say, or lack a quorum count for nothing.
    """
    submissions, votes = sort_rows(rows, spec=spec, run=run, validators=validators)
    units: dict[str, tuple[tuple[str, str | None], int]] = {}
    for name, submission in submissions.items():
        voters = [v for v in votes[name].values() if v.outcome == "accept" and is_verdict_on(v, submission)]
        place = place_digest(submission)
        if len(voters) >= spec.quorum and place not in credited and submission.node in registrations:
            owner = (submission.node, registrations[submission.node].wallet)
            units.setdefault(place, (owner, submission.tokens))
    totals: Counter[tuple[str, str | None]] = Counter()
    for owner, count in units.values():
        totals[owner] += count
    return dict(totals)


def sort_rows(
    rows: Iterable[Envelope], *, spec: RunSpec, run: str, validators: Collection[str]
) -> tuple[dict[str, Submission], defaultdict[str, dict[str, Verdict]]]:
    """Submissions by digest, and the newest verdict of each validator by submission and signer."""
    submissions: dict[str, Submission] = {}
    votes: defaultdict[str, dict[str, Verdict]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: row.sequence):
        try:
            message = open_row(row, run=run, buckets=spec.buckets)
        except Malformed:
            continue
        if isinstance(message, Submission) and row.signer == message.node:
            submissions[row.digest] = message
        elif isinstance(message, Verdict) and row.signer in validators:
            votes[message.submission][row.signer] = message
    return submissions, votes
