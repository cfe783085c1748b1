"""Relay receipts in a tally: which of them count, and for how much.

A receipt counts once per client and checkpoint, only if the client has credit of its own in the same epoch, and for at
most the checkpoint's size. So what relays can be paid for is limited by work that validators have checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from dht.encoding import digest
from dht.errors import Malformed
from roles.messages import Receipt, open_row
from roles.tally.context import TallyContext
from roles.tally.faults import TallyFault, TallyRefused
from roles.tally.items import row_from_text


def receipt_place(receipt: Receipt) -> str:
    """Identity of a (client, checkpoint), which is counted at most once."""
    return digest("receipt-place/1", receipt.client, receipt.step)


def open_receipt(text: str, context: TallyContext) -> Receipt:
    """The receipt in a row of a tally. Raises TallyRefused."""
    try:
        row = row_from_text(text, "receipt/1")
        message = open_row(row, run=context.run, buckets=context.spec.buckets)
        if not isinstance(message, Receipt) or row.signer != message.client:
            raise Malformed("not a receipt of its signer")
    except Malformed as error:
        raise TallyRefused(TallyFault.INVALID_RECEIPT, str(error)[:200]) from error
    return message


def check_receipt(text: str, context: TallyContext, *, clients: Collection[str]) -> Receipt:
    """Check a receipt to be counted. `clients` have credit of their own in this epoch. Raises TallyRefused."""
    receipt = open_receipt(text, context)
    if receipt.client not in clients:
        raise TallyRefused(TallyFault.INVALID_RECEIPT, "its client has no credit in this epoch")
    if not context.is_creditable(receipt.step):
        raise TallyRefused(TallyFault.NOT_CREDITABLE, f"checkpoint {receipt.step}")
    if len({share.relay for share in receipt.shares}) != len(receipt.shares):
        raise TallyRefused(TallyFault.INVALID_RECEIPT, "a relay is named twice")
    if receipt.step not in context.published:
        raise TallyRefused(TallyFault.INVALID_RECEIPT, f"nobody knows how many bytes checkpoint {receipt.step} has")
    return receipt


def relay_units(receipts: Collection[Receipt], context: TallyContext) -> Counter[str]:
    """Bytes by relay. If a receipt is for more than its checkpoint's size (a delta that did not fit, and then the
    whole), each share is reduced in proportion. Relays that were not registered at the closing block earn nothing."""
    units: Counter[str] = Counter()
    for receipt in receipts:
        most, said = context.published[receipt.step], sum(share.size for share in receipt.shares)
        for share in receipt.shares:
            if context.registration_of(share.relay) is not None:
                units[share.relay] += share.size * min(most, said) // said
    return units
