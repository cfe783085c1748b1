"""Why a tally is refused."""

from __future__ import annotations

from enum import StrEnum

from dht.errors import NodeError


class TallyFault(StrEnum):
    """Why a tally is refused."""

    TOO_LARGE = "larger than a tally may be"
    MALFORMED = "not a tally in canonical form"
    WRONG_EPOCH = "of another run, epoch, round or closing block"
    WRONG_PARENT = "does not build on the last final root"
    INVALID_ITEM = "an item is not a submission that a quorum accepted"
    INVALID_REFUSAL = "a refusal is not a submission that a quorum found at fault"
    INVALID_RECEIPT = "a receipt is not of a client with credit in this epoch"
    NOT_CREDITABLE = "an item's step is not committed by the closing block, or too long ago"
    UNREGISTERED = "an item's node was not registered at the closing block"
    DISPUTED = "an item has an unanswered fault verdict"
    REPEATED_ITEM = "an index, a refusal or a receipt appears twice"
    CREDITED_BEFORE = "an item was credited before"
    WRONG_HISTORY = "the list of credited items is not the parent's and its own"
    WRONG_UNITS = "the leaves are not the parent's plus what the items are worth"
    WRONG_ROOT = "the root, a total or the digest is not that of its content"


class TallyRefused(NodeError):
    """A tally that must not be attested."""

    def __init__(self, fault: TallyFault, detail: str = "") -> None:
        self.fault = fault
        super().__init__(f"the tally is refused: {fault.value}{f' ({detail})' if detail else ''}")
