"""The value of an epoch's items, refusals, receipts and commits, in units by role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roles.messages import Receipt
from roles.tally.context import TallyContext
from roles.tally.items import JudgedItem, place_digest, refusal_digest
from roles.tally.receipts import receipt_place, relay_units
from roles.tally.rewards import Units


@dataclass(slots=True)
class Credit:
    """Everything that counts in one epoch, each place once."""

    context: TallyContext
    accepted: list[JudgedItem] = field(default_factory=list)
    refused: list[JudgedItem] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)

    def places(self) -> tuple[str, ...]:
        """The counted places, in the order of the body: items, refusals, receipts."""
        return (
            *(place_digest(item.submission) for item in self.accepted),
            *(refusal_digest(item.digest) for item in self.refused),
            *(receipt_place(receipt) for receipt in self.receipts),
        )

    def history(self) -> tuple[tuple[str, ...], ...]:
        """Places of the last epochs, as many as there are validators; this epoch's are last."""
        before = self.context.parent.credited if self.context.parent else ()
        return (*before, self.places())[-len(self.context.validators) :]

    def clients(self) -> frozenset[str]:
        """Workers and validators with credit of their own: their receipts count."""
        return frozenset({*_tokens(self.accepted), *_votes((*self.accepted, *self.refused))})

    def units(self) -> Units:
        """Workers: verified tokens. Validators: verdicts that agree with the tally. Relays: bytes. Trainers: steps."""
        return {
            "worker": _tokens(self.accepted),
            "validator": _votes((*self.accepted, *self.refused)),
            "relay": relay_units(self.receipts, self.context),
            "trainer": Counter(self.context.new_steps().values()),
        }


def _tokens(items: Iterable[JudgedItem]) -> Counter[str]:
    units: Counter[str] = Counter()
    for item in items:
        units[item.submission.node] += item.submission.tokens
    return units


def _votes(items: Sequence[JudgedItem]) -> Counter[str]:
    return Counter(name for item in items for name in item.earning)
