"""Evidence for a strike: submissions of one node that a quorum of validators found at fault, as signed. Pure.

Anyone with the blob and the ledger's list of validators can check it: nobody is struck on one validator's claim.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from dht.encoding import Digest, Message, Natural, decode, encode
from dht.envelope import Envelope
from dht.errors import Malformed, NodeError
from ledger.records import Commit, HeldStrike
from roles.messages import NodeName, Submission, Verdict
from roles.tally.body import TallyItem
from roles.tally.context import Bench
from roles.tally.items import open_item, row_from_text

MAX_EVIDENCE = 2**23
MAX_UNPACKED = 2**25


class EvidenceRefused(NodeError):
    """The evidence does not prove what it claims."""


class Evidence(Message):
    """The faults of a node; `number` is how many strikes it had before."""

    kind: Literal["evidence/1"] = "evidence/1"
    run: Digest
    node: NodeName
    number: Natural
    faults: Annotated[tuple[TallyItem, ...], Field(min_length=1, max_length=1000)]


def pack_evidence(*, run: str, node: str, number: int, faults: Iterable[TallyItem]) -> bytes:
    """Encode evidence as a blob."""
    return zlib.compress(encode(Evidence(run=run, node=node, number=number, faults=tuple(faults))), 6)


def open_evidence(data: bytes) -> Evidence:
    """Parse a blob in bounded memory. Raises EvidenceRefused."""
    if len(data) > MAX_EVIDENCE:
        raise EvidenceRefused("the evidence is larger than evidence may be")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, MAX_UNPACKED)
        if not unpacker.eof or unpacker.unused_data:
            raise Malformed("not one whole stream")
        return decode(Evidence, plain)
    except (zlib.error, Malformed) as error:
        raise EvidenceRefused(f"the evidence cannot be read: {str(error)[:200]}") from error


def steps_dealt_with(before: Sequence[HeldStrike], commits: Iterable[Commit], *, async_level: int) -> int:
    """The last step whose faults were, or could have been, used by an earlier strike of the node: those that were open
    when it was made. -1 if there was none."""
    if not before:
        return -1
    committed = [commit.step for commit in commits if commit.block <= before[-1].block]
    return max(committed, default=0) + async_level + 1


def held_against(data: bytes, *, bench: Bench, keys: Collection[str]) -> list[tuple[Envelope, int]]:
    """The submissions by one of these keys that the evidence proves at fault, as signed, each index once, with the
    reason that most of this bench gave. Anything else in the blob is ignored. Raises EvidenceRefused."""
    found: dict[tuple[int, int], tuple[Envelope, int]] = {}
    for item in open_evidence(data).faults:
        with suppress(Malformed):
            row, submission, verdicts = open_item(item_for(item, bench), bench, "fault")
            if submission.node in keys:
                found.setdefault((submission.step, submission.index), (row, _reason(verdicts.values())))
    return list(found.values())


def _reason(verdicts: Iterable[Verdict]) -> int:
    said = Counter(verdict.reason for verdict in verdicts)
    return min(said, key=lambda reason: (-said[reason], reason))


def check_evidence(
    data: bytes, *, node: str, number: int, bench: Bench, needed: int, after_step: int, keys: Collection[str]
) -> list[tuple[Submission, dict[str, Verdict]]]:
    """The faults that the blob proves: each submission, and the verdicts on it by validator.

    Requires at least `needed` different indices of the node, submitted by one of its `keys`, all of steps after
    `after_step` (a lifted strike is not repeated for the same faults). Verdicts of former validators are ignored and
    invalidate nothing. Raises EvidenceRefused.
    """
    evidence = open_evidence(data)
    if (evidence.run, evidence.node, evidence.number) != (bench.run, node, number):
        raise EvidenceRefused("the evidence is about another run, node or strike")
    faults: dict[tuple[int, int], tuple[Submission, dict[str, Verdict]]] = {}
    for item in evidence.faults:
        try:
            item = item_for(item, bench)
            if len(item.verdicts) < bench.quorum:
                continue
            _, submission, verdicts = open_item(item, bench, "fault")
        except Malformed as error:
            raise EvidenceRefused(f"a fault is not proved: {error}") from error
        if submission.node not in keys or submission.step <= after_step:
            raise EvidenceRefused("a fault is another node's, or was dealt with before")
        faults[(submission.step, submission.index)] = submission, verdicts
    if len(faults) < needed:
        raise EvidenceRefused(f"{len(faults)} faults are proved, {needed} are needed")
    return list(faults.values())


def item_for(item: TallyItem, bench: Bench) -> TallyItem:
    """The item with only the verdicts of the bench's validators. Raises Malformed."""
    own = [text for text in item.verdicts if row_from_text(text, "verdict/2").signer in bench.validators]
    return item.model_copy(update={"verdicts": tuple(own)})
