"""The facts for a tally, read from the ledger as of the epoch's closing block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledger.records import Commit, FinalRoot, ValidatorSet
from roles.ports import Ledger
from roles.spec import RunSpec
from roles.tally.body import TallyBody
from roles.tally.context import TallyContext


async def read_context(
    ledger: Ledger,
    *,
    spec: RunSpec,
    roots: Sequence[FinalRoot],
    parent: TallyBody | None,
    closing_block: int,
    published: Mapping[int, int],
    attested_at: int | None = None,
) -> TallyContext:
    """The context by which the tally after `roots` is built and checked, if it closes at this block. `attested_at` is
    the block in which a final tally was finalised. Raises LedgerError."""
    terms, in_force = await ledger.terms(), await ledger.validators_at(attested_at)
    judges = bench_of(await ledger.validators_at(closing_block), in_force)
    commits = await ledger.commits()
    operators = (*terms.trainers, *terms.validators, *judges.validators)
    return TallyContext(
        spec=spec,
        run=terms.run,
        roots=roots,
        parent=parent,
        closing_block=closing_block,
        validators=tuple(item.node for item in judges.validators),
        quorum=judges.quorum,
        commits={commit.step: commit for commit in commits},
        registrations=await ledger.registrations(closing_block),
        payouts={item.node: item.payout for item in operators},
        leaders=await _leaders(ledger, commits),
        published=published,
        funds=await ledger.funds_at(closing_block),
        in_force=tuple(item.node for item in in_force.validators),
    )


def bench_of(closing: ValidatorSet, in_force: ValidatorSet) -> ValidatorSet:
    """The validators whose verdicts count: the set at the closing block, unless too few of them remain for
    its quorum. Verdicts of validators that have left are not kept, so the set in force then judges again
    whatever can still be credited."""
    left = {item.node for item in closing.validators} & {item.node for item in in_force.validators}
    return closing if len(left) >= closing.quorum else in_force


async def _leaders(ledger: Ledger, commits: Iterable[Commit]) -> dict[int, str]:
    """The trainer of each term in which something was committed."""
    found: dict[int, str] = {}
    for commit in commits:
        if commit.term not in found:
            lease = await ledger.lease(commit.block)
            if lease.term == commit.term:
                found[commit.term] = lease.leader
    return found
