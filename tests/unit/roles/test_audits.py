"""The audit coin: always the same, predictable by nobody else, and heads at the right rate."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dht.encoding import digest
from roles.audits import AuditCoin
from roles.spec import CheckSpec
from tests.builders import VALIDATORS

RUN = "ab" * 32
DIGESTS = [digest("submission", number) for number in range(4000)]


def test_coin__falls_as_often_as_its_rate__val_04() -> None:
    coin = AuditCoin(VALIDATORS[0], run=RUN, rate=100)
    share = sum(map(coin, DIGESTS)) / len(DIGESTS)
    assert 0.08 < share < 0.12


def test_coin__always_and_the_same() -> None:
    assert all(map(AuditCoin(VALIDATORS[0], run=RUN, rate=1000), DIGESTS[:50]))
    first, again = ([*map(AuditCoin(VALIDATORS[0], run=RUN, rate=500), DIGESTS[:50])] for _ in range(2))
    assert first == again


@pytest.mark.parametrize("other", [{"key": VALIDATORS[1]}, {"run": "cd" * 32}])
def test_coin__of_another_validator_or_run_is_another(other: dict[str, object]) -> None:
    fields = {"key": VALIDATORS[0], "run": RUN, **other}
    key, run = fields.pop("key"), fields.pop("run")
    mine = [*map(AuditCoin(VALIDATORS[0], run=RUN, rate=500), DIGESTS[:64])]
    assert mine != [*map(AuditCoin(key, run=run, rate=500), DIGESTS[:64])]  # type: ignore[arg-type]


def test_checks__a_sample_needs_a_window() -> None:
    with pytest.raises(ValidationError, match="audit_window"):
        CheckSpec(audit_rate=100)
    assert CheckSpec(audit_rate=100, audit_window=60).probation == 16
