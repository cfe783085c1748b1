"""Whether a proposed tally leaves out much of what it could contain. Pure.

A unit's pay depends on the other units counted: by leaving out everybody else, a proposer could share an
epoch's payment among its friends. Honest validators do not know the same things at the same time, so
small omissions are tolerated.
"""

from __future__ import annotations

from collections.abc import Mapping

from roles.tally.body import TallyBody
from roles.tally.context import TallyContext
from roles.tally.items import Contribution, pack_item, rows_of
from roles.tally.limits import Room

MOST_OMITTED = 10
"""At most one tenth of the tokens that a tally credits may be missing."""


def omitted_tokens(body: TallyBody, context: TallyContext, held: Mapping[str, tuple[int, Contribution]]) -> int:
    """Tokens of accepted submissions, by place, that the tally lacks although they would have fitted. Its refusals and
    receipts are no excuse, because submissions come first."""
    room, places = Room(context.limits, context.parent), frozenset(body.credited[-1])
    for item in body.items:
        room.take(*rows_of(item))
    return sum(
        tokens
        for place, (tokens, contribution) in held.items()
        if place not in places and room.take(*rows_of(pack_item(contribution)))
    )


def is_much(omitted: int, body: TallyBody, parent: TallyBody | None) -> bool:
    """Whether that is more than a tenth of the tokens that this epoch credits."""
    return MOST_OMITTED * omitted > _tokens(body) - _tokens(parent)


def _tokens(body: TallyBody | None) -> int:
    return sum(leaf.units for leaf in body.leaves if leaf.role == "worker") if body else 0
