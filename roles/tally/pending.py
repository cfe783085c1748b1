"""Units that a quorum accepted but no final tally contains yet, from the rows in the DHT."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from dht.envelope import Envelope
from dht.errors import Malformed
from ledger.records import Registration, ValidatorSet, by_any_key
from roles.messages import Submission, Verdict, open_row
from roles.spec import RunSpec
from roles.tally.items import place_digest
from roles.trusted import is_verdict_on


def pending_contributions(
    rows: Iterable[Envelope],
    *,
    spec: RunSpec,
    judges: ValidatorSet,
    registrations: Mapping[str, Registration],
    credited: Collection[str],
    past: Collection[int] = (),
) -> dict[tuple[str, str | None], int]:
    """Units accepted by a quorum but not final yet, by (node, wallet), from verified submission and verdict rows.

    `judges` are the validators in force. `credited` are the place digests of the last final tally
    (`TallyBody.credited`, joined), `past` the steps that it no longer considers. Rows that do not parse, misstate whom
    they are about, or lack a quorum are ignored.
    """
    validators = [item.node for item in judges.validators]
    submissions, votes = sort_rows(rows, spec=spec, validators=validators)
    nodes = by_any_key(registrations)
    units: dict[str, tuple[tuple[str, str | None], int]] = {}
    for name, submission in submissions.items():
        voters = [v for v in votes[name].values() if v.outcome == "accept" and is_verdict_on(v, submission)]
        place = place_digest(submission)
        is_open = place not in credited and submission.step not in past
        if len(voters) >= judges.quorum and is_open and submission.node in nodes:
            owner = (submission.node, nodes[submission.node].wallet)
            units.setdefault(place, (owner, submission.tokens))
    totals: Counter[tuple[str, str | None]] = Counter()
    for owner, count in units.values():
        totals[owner] += count
    return dict(totals)


def sort_rows(
    rows: Iterable[Envelope], *, spec: RunSpec, validators: Collection[str]
) -> tuple[dict[str, Submission], defaultdict[str, dict[str, Verdict]]]:
    """Submissions by digest, and the newest verdict of each validator, by submission and signer."""
    submissions: dict[str, Submission] = {}
    votes: defaultdict[str, dict[str, Verdict]] = defaultdict(dict)
    run = spec.run_id
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
