"""A validator's record of how far each node's submissions deviate, and its consequences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog.testing

from roles.rules import Reason
from roles.spec import JoinedSpec, NoiseSpec
from roles.validator.histories import Histories
from roles.validator.records import JudgedRows
from roles.verification import Finding
from tests.builders import WORKERS

NODE, OTHER = WORKERS[0].node, WORKERS[1].node
CHUNKS = NoiseSpec(levels=(10**9,) * 4, unit=10**6, completion=0, submission=0)
JOINED = JoinedSpec(
    exponents=CHUNKS,
    mantissas=CHUNKS,
    margins=CHUNKS.model_copy(update={"levels": (10**9,)}),
    month=100,
    alarm_one_in=100,
)
"""Limit: log(100 * 100) = 9.2 nats."""


@contextmanager
def opened(folder: Path, joined: JoinedSpec | None = JOINED) -> Iterator[Histories]:
    records = JudgedRows(folder / "judged.sqlite")
    try:
        yield Histories(joined, records)
    finally:
        records.close()


def accepted(evidence: float | None) -> Finding:
    sums = None if evidence is None else (evidence,)
    return Finding("accept", Reason.ACCEPTED, audited=True, sequences=("ab",), evidence=sums)


def weigh(histories: Histories, evidence: float | None, number: int, node: str = NODE) -> Finding:
    return histories.weigh(accepted(evidence), node=node, submission=f"{number:064x}", step=number)


def test_weigh__over_the_limit__refused_softly_and_only_this_node(tmp_path: Path) -> None:
    with opened(tmp_path) as histories:
        assert weigh(histories, 5.0, 1).outcome == "accept"
        assert not histories.deviates(NODE)
        with structlog.testing.capture_logs() as logs:
            found = weigh(histories, 5.0, 2)
        assert (found.outcome, found.reason, found.sequences) == ("soft", Reason.HISTORY_DEVIATES, ())
        assert [entry["event"] for entry in logs] == ["history.deviates"]
        assert histories.deviates(NODE)
        assert weigh(histories, 0.0, 3, node=OTHER).outcome == "accept"


def test_weigh__a_submission_judged_again_counts_once(tmp_path: Path) -> None:
    with opened(tmp_path) as histories:
        for _ in range(5):
            assert weigh(histories, 5.0, 1).outcome == "accept"


def test_weigh__a_refusal_keeps_its_reason_and_counts(tmp_path: Path) -> None:
    refused = Finding("fault", Reason.PROOF_MISMATCH, audited=True, evidence=(8.0,))
    with opened(tmp_path) as histories:
        for number in (1, 2):
            assert histories.weigh(refused, node=NODE, submission=f"{number:064x}", step=1) == refused
        assert histories.deviates(NODE)


def test_weigh__restart_goes_on_with_the_sum(tmp_path: Path) -> None:
    with opened(tmp_path) as histories:
        weigh(histories, 6.0, 1)
    with opened(tmp_path) as histories:
        assert weigh(histories, 6.0, 1).outcome == "accept"  # counted before
        assert weigh(histories, 6.0, 2).reason is Reason.HISTORY_DEVIATES


def test_weigh__honest_work_leads_back(tmp_path: Path) -> None:
    with opened(tmp_path) as histories:
        for number in range(100):
            weigh(histories, 8.0, number)
        with structlog.testing.capture_logs() as logs:
            outcomes = [weigh(histories, -0.69, number).outcome for number in range(100, 130)]
        assert outcomes[0] == "soft"
        assert outcomes[-1] == "accept"
        assert [entry["event"] for entry in logs] == ["history.recovered"]


def test_weigh__not_asked_for_or_not_audited__nothing_changes(tmp_path: Path) -> None:
    with opened(tmp_path, None) as histories:
        assert weigh(histories, 100.0, 1).outcome == "accept"
        assert not histories.deviates(NODE)
    with opened(tmp_path) as histories:
        assert weigh(histories, None, 1).outcome == "accept"
