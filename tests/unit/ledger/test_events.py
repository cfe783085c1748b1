"""Logs from an end-point, in any order and repeated any number of times."""

from __future__ import annotations

import random

import pytest

from ledger import abi, standing
from ledger.calls import CALLS, PAYABLE
from ledger.changes import Struck, TakenOver, ValidatorsProposed
from ledger.errors import LedgerError
from ledger.events import TOPICS, EventLog
from tests.contract.harness import (
    NODES,
    OWNER,
    STRANGER,
    Registry,
    make_registration,
    make_rotation,
    make_strike,
    make_terms,
)

OTHER_CALLS = {"create_run", "register", "rotate", "commit_checkpoint", "finalise", "strike"}
PAYEE = "0x" + "11" * 20


def make_registry() -> Registry:
    registry = Registry()
    registry.create_run()
    registry.register(make_registration(registry.domain))
    registry.do(OWNER, "fund", 5)
    registry.do(STRANGER, "stake", NODES[5], PAYEE, 40)
    registry.strike(make_strike())
    registry.lift()
    registry.rotate(make_rotation(registry.domain))
    registry.commit(0)
    return registry


def logs_of(registry: Registry) -> list[dict[str, object]]:
    newest = int(registry.chain.head["number"], 16)
    return [dict(each) for each in registry.chain.logs(0, newest) if each["topics"][0] in TOPICS]


def test_add__order_and_repetition_do_not_matter() -> None:
    registry = make_registry()
    logs, log = logs_of(registry), EventLog()
    shuffled = random.Random(7).sample(logs, len(logs))
    log.add(shuffled[:4])
    log.add(shuffled)
    log.add(logs)
    assert log == registry.events()


def test_add__equal_events_of_one_block_both_count() -> None:
    registry = Registry()
    registry.create_run()
    registry.do(OWNER, "fund", 5)
    (funded,) = logs_of(registry)[-1:]
    log = EventLog()
    log.add([funded, {**funded, "logIndex": "0x1"}, funded])
    assert standing.funds_of(log.changes) == 10


def test_until_and_forget__by_block() -> None:
    log = make_registry().events()
    for block in range(2, 11):
        early = log.until(block)
        assert all(each.block <= block for each in (*early.registrations, *early.commits, *early.changes))
        log_again = log.until(10**6)
        log_again.forget_from(block + 1)
        assert early == log_again
    assert log.until(10**6) == log


@pytest.mark.parametrize("spoiled", [{"data": "0x12"}, {"logIndex": None}, {"topics": []}, {"blockNumber": "x"}])
def test_add__a_malformed_log_takes_nothing_in(spoiled: dict[str, object]) -> None:
    logs, log = logs_of(make_registry()), EventLog()
    with pytest.raises(LedgerError):
        log.add([*logs, {**logs[2], **spoiled}])
    assert log == EventLog()


def test_is_complete__notices_a_strike_or_a_set_that_was_left_out() -> None:
    registry = make_registry()
    registry.strike(make_strike(number=1))
    for _ in range(2):
        registry.do(OWNER, "propose_validators", make_terms().validators, 2)
    whole = registry.events()
    assert whole.is_complete()
    for missing in (Struck, ValidatorsProposed):
        first = next(each for each in whole.changes if isinstance(each, missing))
        log = whole.until(10**6)
        log.changes.remove(first)
        assert not log.is_complete()


def test_standing__survives_events_that_were_left_out() -> None:
    changes = make_registry().events().changes
    assert standing.strikes_of("run", [each for each in changes if type(each).__name__ != "Struck"]) == ()
    assert standing.stakes_of([each for each in changes if type(each).__name__ != "Staked"]) == {}


def test_lease__a_take_over_by_nobody_is_a_lie() -> None:
    taken = TakenOver(block=9, term=2, leader=1, until=5)
    with pytest.raises(LedgerError, match="take-over"):
        standing.lease_of(make_terms(), [], [taken])


def test_calls__of_the_contract_are_all_known__chain_19() -> None:  # CHAIN-19
    functions = [entry for entry in abi.built()["abi"] if entry["type"] == "function"]
    changing = {entry["name"] for entry in functions if entry["stateMutability"] in ("nonpayable", "payable")}
    assert changing == OTHER_CALLS | set(CALLS)
    assert {entry["name"] for entry in functions if entry["stateMutability"] == "payable"} == set(PAYABLE)


def test_topics__every_event_has_a_reader__chain_21() -> None:  # CHAIN-21
    assert set(TOPICS.values()) | {"RunCreated"} == set(abi.event_names())


def test_replace_from__malformed_logs_take_nothing_away() -> None:
    registry = Registry()
    registry.create_run()
    registry.commit(0)
    held = registry.events()
    before = list(held.commits)
    assert before
    with pytest.raises(LedgerError):
        held.replace_from(0, [{"topics": []}])
    assert held.commits == before
    held.replace_from(before[0].block, [])
    assert held.commits == []
