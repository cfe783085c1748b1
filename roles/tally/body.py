"""The contents of a tally blob, and how its bytes are read in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from dht.encoding import Digest, Message, Natural, decode, sha256
from dht.errors import Malformed
from ledger.merkle import merkle_root
from ledger.records import FinalRoot, Leaf, Proposal
from roles.messages import NodeName, Role
from roles.spec import EthAddress
from roles.tally.faults import TallyFault, TallyRefused

MAX_BLOB = 32 * 2**20
MAX_BODY = 64 * 2**20
MAX_ROWS = 40 * 2**20
"""Maximum bytes of signed rows in one tally; what exceeds them is credited in a later one."""
MAX_ITEMS = 50_000
MAX_RECEIPTS = 50_000
Row = Annotated[str, Field(max_length=5600, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
"""A signed row in base64."""
Count = Annotated[int, Field(ge=0, lt=2**128)]


class TallyItem(Message):
    """A submission and the matching verdicts of at least a quorum, as signed."""

    submission: Row
    verdicts: Annotated[tuple[Row, ...], Field(min_length=1, max_length=64)]


class TallyLeaf(Message):
    """Cumulative units and amount (base units) of one (role, node, wallet)."""

    role: Role
    node: NodeName
    wallet: EthAddress | None
    units: Count
    amount: Count


class TallyBody(Message):
    """The contents of a tally blob. `items` were accepted, `refusals` found at fault. `credited` lists, for
    the last epochs (as many as there are validators), the places counted in each: of items, refusals and
    receipts; this epoch's is last."""

    kind: Literal["tally-body/2"] = "tally-body/2"
    run: Digest
    epoch: Natural
    round: Natural
    closing_block: Natural
    parent_root: Digest
    parent_blob: Digest
    items: Annotated[tuple[TallyItem, ...], Field(max_length=MAX_ITEMS)]
    refusals: Annotated[tuple[TallyItem, ...], Field(max_length=MAX_ITEMS)] = ()
    receipts: Annotated[tuple[Row, ...], Field(max_length=MAX_RECEIPTS)] = ()
    credited: Annotated[tuple[tuple[Digest, ...], ...], Field(max_length=64)]
    leaves: Annotated[tuple[TallyLeaf, ...], Field(max_length=1_000_000)]

    def places(self) -> frozenset[str]:
        """All places counted in the last epochs."""
        return frozenset(place for places in self.credited for place in places)


def plain_leaves(leaves: Iterable[TallyLeaf]) -> tuple[Leaf, ...]:
    """The leaves as ledger records."""
    return tuple(
        Leaf(role=leaf.role, node=leaf.node, wallet=leaf.wallet, units=leaf.units, amount=leaf.amount)
        for leaf in leaves
    )


def proposal_of(body: TallyBody, blob: bytes) -> Proposal:
    """The proposal that attestations of a tally sign. Raises TallyRefused when a leaf appears twice."""
    leaves = plain_leaves(body.leaves)
    try:
        root = merkle_root(leaves)
    except ValueError as error:
        raise TallyRefused(TallyFault.WRONG_UNITS, str(error)) from error
    return Proposal(
        run=body.run,
        epoch=body.epoch,
        round=body.round,
        closing_block=body.closing_block,
        parent_root=body.parent_root,
        root=root,
        total=sum(leaf.units for leaf in leaves),
        amount=sum(leaf.amount for leaf in leaves),
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
    """The body of a final root. Raises TallyRefused unless it is the blob that the ledger names."""
    if sha256(blob) != root.blob:
        raise TallyRefused(TallyFault.WRONG_ROOT)
    return open_tally(blob)
