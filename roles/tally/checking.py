"""Checks a tally that another validator proposed, or that is final, by recounting everything in it."""

from __future__ import annotations

from collections.abc import Collection

from ledger.records import Proposal
from roles.tally.body import TallyBody, open_tally, proposal_of
from roles.tally.context import TallyContext
from roles.tally.crediting import Credit
from roles.tally.faults import TallyFault, TallyRefused
from roles.tally.items import check_item, check_refusal
from roles.tally.receipts import check_receipt
from roles.tally.rewards import new_leaves


def open_proposed(blob: bytes, context: TallyContext) -> TallyBody:
    """Parse a proposed tally, no larger than an honest one can be. Raises TallyRefused."""
    return open_tally(blob, most=context.limits.most_bytes(context.parent))


def check_tally(blob: bytes, proposal: Proposal, context: TallyContext, *, disputed: Collection[str] = ()) -> TallyBody:
    """Check a proposed tally; omissions are not a fault. `disputed` are digests of submissions with an unanswered fault
    verdict. Raises TallyRefused with the first fault."""
    body = open_proposed(blob, context)
    _check_header(body, proposal, context)
    credit = Credit(context)
    credit.accepted += [check_item(item, context, disputed=disputed) for item in body.items]
    credit.refused += [check_refusal(item, context) for item in body.refusals]
    clients = credit.clients()
    credit.receipts += [check_receipt(text, context, clients=clients) for text in body.receipts]
    _check_places(credit, context)
    if body.credited != credit.history():
        raise TallyRefused(TallyFault.WRONG_HISTORY)
    if body.leaves != new_leaves(context, credit.units()):
        raise TallyRefused(TallyFault.WRONG_UNITS)
    if proposal != proposal_of(body, blob):
        raise TallyRefused(TallyFault.WRONG_ROOT)
    return body


def _check_places(credit: Credit, context: TallyContext) -> None:
    places = credit.places()
    if len(set(places)) != len(places):
        raise TallyRefused(TallyFault.REPEATED_ITEM)
    if not context.credited().isdisjoint(places):
        raise TallyRefused(TallyFault.CREDITED_BEFORE)


def _check_header(body: TallyBody, proposal: Proposal, context: TallyContext) -> None:
    said = (body.run, body.epoch, body.round, body.closing_block)
    if said != (context.run, context.epoch, proposal.round, context.closing_block):
        raise TallyRefused(TallyFault.WRONG_EPOCH)
    if (body.parent_root, body.parent_blob) != (context.parent_root, context.parent_blob):
        raise TallyRefused(TallyFault.WRONG_PARENT)
