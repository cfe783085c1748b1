"""Builds the tally of an epoch from everything that may be credited in it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from dht.encoding import encode
from dht.envelope import Envelope
from ledger.records import Proposal
from roles.tally.body import MAX_ITEMS, MAX_RECEIPTS, TallyBody, TallyItem, proposal_of
from roles.tally.context import TallyContext
from roles.tally.crediting import Credit
from roles.tally.faults import TallyRefused
from roles.tally.items import (
    Contribution,
    check_item,
    check_refusal,
    pack_item,
    place_digest,
    refusal_digest,
    row_text,
    rows_of,
)
from roles.tally.limits import Room
from roles.tally.receipts import check_receipt, receipt_place
from roles.tally.rewards import new_leaves


def build_tally(
    context: TallyContext,
    contributions: Iterable[Contribution],
    *,
    round_number: int,
    refusals: Iterable[Contribution] = (),
    receipts: Iterable[Envelope] = (),
) -> tuple[bytes, Proposal]:
    """The blob of an epoch, and the proposal that validators attest. What may not be credited (see `TallyFault`) is
    left out. What exceeds the size of a tally is left out too, but stays creditable."""
    draft = _Draft(context)
    for contribution in contributions:
        draft.add_item(contribution)
    for contribution in refusals:
        draft.add_refusal(contribution)
    clients = draft.credit.clients()
    for row in receipts:
        draft.add_receipt(row, clients)
    body = draft.body(round_number)
    blob = zlib.compress(encode(body), 6)
    return blob, proposal_of(body, blob)


class _Draft:
    """A tally under construction."""

    def __init__(self, context: TallyContext) -> None:
        self.credit = Credit(context)
        self._context = context
        self._items: list[TallyItem] = []
        self._refusals: list[TallyItem] = []
        self._receipts: list[str] = []
        self._taken, self._room = set(context.credited()), Room(context.limits, context.parent)

    def add_item(self, contribution: Contribution) -> None:
        """Credit an accepted submission, if it is valid."""
        item = pack_item(contribution)
        if not self._room.has(*rows_of(item)):  # do not verify what cannot be included anyway
            return
        try:
            judged = check_item(item, self._context)
        except TallyRefused:
            return
        if len(self._items) < MAX_ITEMS and self._take(place_digest(judged.submission), *rows_of(item)):
            self._items.append(item)
            self.credit.accepted.append(judged)

    def add_refusal(self, contribution: Contribution) -> None:
        """Credit the validators that found a submission at fault, if that is valid."""
        item = pack_item(contribution)
        try:
            judged = check_refusal(item, self._context)
        except TallyRefused:
            return
        if len(self._refusals) < MAX_ITEMS and self._take(refusal_digest(judged.digest), *rows_of(item)):
            self._refusals.append(item)
            self.credit.refused.append(judged)

    def add_receipt(self, row: Envelope, clients: frozenset[str]) -> None:
        """Credit relays, if the receipt is valid."""
        text = row_text(row)
        try:
            receipt = check_receipt(text, self._context, clients=clients)
        except TallyRefused:
            return
        if len(self._receipts) < MAX_RECEIPTS and self._take(receipt_place(receipt), text):
            self._receipts.append(text)
            self.credit.receipts.append(receipt)

    def body(self, round_number: int) -> TallyBody:
        """The finished body."""
        context = self._context
        return TallyBody(
            run=context.run,
            epoch=context.epoch,
            round=round_number,
            closing_block=context.closing_block,
            parent_root=context.parent_root,
            parent_blob=context.parent_blob,
            items=tuple(self._items),
            refusals=tuple(self._refusals),
            receipts=tuple(self._receipts),
            credited=self.credit.history(),
            leaves=new_leaves(context, self.credit.units()),
        )

    def _take(self, place: str, *rows: str) -> bool:
        """Reserve a place and space for its rows. Returns whether the place was free and they fit."""
        if place in self._taken or not self._room.take(*rows):
            return False
        self._taken.add(place)
        return True
