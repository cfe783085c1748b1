"""Hundreds of junk submissions: the refusals are validators' rows, and must not displace their other verdicts."""

from __future__ import annotations

from dht.envelope import Envelope, to_bytes
from dht.rows import Caps, Outcome, RowStore
from roles.messages import ROW_RULES, subject_of
from roles.rules import Reason
from tests.builders import NOW, VALIDATORS, WORKERS, make_row, make_spec, make_submission, make_verdict, make_world

SPEC = make_spec()
WORLD = make_world(SPEC)


def refused(number: int, validator: int) -> Envelope:
    junk = make_submission(WORLD, WORKERS[1], blob=f"{number:064x}")
    verdict = make_verdict(junk, outcome="soft", reason=int(Reason.BLOB_MISSING), audited=False)
    return make_row(verdict, VALIDATORS[validator], spec=SPEC)


def test_put__verdicts_on_one_workers_junk_keep_no_others_out() -> None:
    """Validators have equally many bytes, so none yields to another. Within one's rows, those about the junk do."""
    lifetimes = {kind: rule.lifetime for kind, rule in ROW_RULES.items()}
    store = RowStore(
        lifetimes=lifetimes,
        membership=WORLD.trusted.may_be_stored,
        about=subject_of,
        caps=Caps(bytes_per_key=2**17),
    )
    outcomes = [store.put(refused(number, each), NOW) for number in range(80) for each in range(len(VALIDATORS))]
    assert outcomes[0] is Outcome.STORED
    assert outcomes[-1] is Outcome.KEY_FULL
    honest = make_submission(WORLD)
    for validator in VALIDATORS:
        row = make_row(make_verdict(honest), validator, spec=SPEC)
        assert store.put(row, NOW) is Outcome.STORED
        assert to_bytes(row) in [data for _, data in store.rows(row.key, NOW)]
