"""The event stream: bounded, counted, readable, and free of secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

from node.log import EventStream, configure_logging, format_line
from node.testnet.events import EventTail


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    for handler in logging.getLogger().handlers:
        if handler not in handlers:
            handler.close()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def configured(tmp_path: Path) -> tuple[EventStream, io.StringIO]:
    events, terminal = EventStream(tmp_path / "events.jsonl"), io.StringIO()
    configure_logging(
        events=events, terminal=terminal, level="info", library_log=tmp_path / "node.log", bound={"role": "worker"}
    )
    return events, terminal


def test_configure_logging__event_to_file_and_terminal(tmp_path: Path) -> None:
    events, terminal = configured(tmp_path)
    structlog.get_logger().info("submission.sent", step=7, submission="a" * 64, wallet_password="hunter2")
    events.close()
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["event"], found["role"], found["step"]) == ("submission.sent", "worker", 7)
    assert "hunter2" not in line + terminal.getvalue()
    assert "submission.sent step=7 submission=aaaaaa..aaaa" in terminal.getvalue()  # no sentence without its fields
    assert events.counts["submission.sent"] == 1


def test_event_stream__begins_anew_past_its_limit(tmp_path: Path) -> None:
    events = EventStream(tmp_path / "events.jsonl", limit=200)
    for number in range(20):
        events.write({"event": "row.read", "number": number})
    events.close()
    assert (tmp_path / "events.jsonl").stat().st_size <= 240
    assert (tmp_path / "events.1.jsonl").exists()


def test_event_stream__written_from_many_threads_while_it_begins_anew(tmp_path: Path) -> None:
    events = EventStream(tmp_path / "events.jsonl", limit=2_000)
    with ThreadPoolExecutor(8) as threads:
        written = [threads.submit(events.write, {"event": "row.read", "number": number}) for number in range(4_000)]
    events.close()
    assert [job.exception() for job in written if job.exception()] == []
    assert all(json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())


def test_event_tail__gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert list(tail.read()) == []  # not there yet
    path.write_text('{"event":"a"}\nnot json\n{"event":"b"')
    assert [event["event"] for event in tail.read()] == ["a"]
    with path.open("a") as file:
        file.write("}\n")
    assert [event["event"] for event in tail.read()] == ["b"]
    path.write_text('{"event":"c"}\n')  # begun anew
    assert [event["event"] for event in tail.read()] == ["c"]


def test_format_line__an_event_is_a_sentence() -> None:
    event = {
        "ts": 0.0,
        "level": "info",
        "role": "worker",
        "event": "submission.accepted",
        "step": 7,
        "index": 0,
        "tokens": 9,
    }
    assert format_line(event).endswith("worker    step 7, index 0: ACCEPTED, 9 tokens")


def test_format_line__a_warning_keeps_its_name() -> None:
    event = {"ts": 0.0, "level": "warning", "role": "worker", "event": "run.not_found_yet", "cause": "no relay"}
    assert format_line(event).endswith("WARNING the run is not found yet: no relay [run.not_found_yet]")


def test_configure_logging__progress_in_a_file_has_its_time(tmp_path: Path) -> None:
    events, terminal = configured(tmp_path)
    structlog.get_logger().info("checkpoint.arriving", step=7, received=1, total=2, rate=0, seconds_left=None)
    events.close()
    assert re.match(r"\d\d:\d\d:\d\d worker    checkpoint 7 \[####", terminal.getvalue())


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "tally.finalised", "epoch": 3, "amount": 12}, "a tally is final on the ledger; 12 base units are"),
        ({"event": "tally.finalised", "epoch": 3, "amount": 0}, "epoch 3: a tally is final on the ledger"),
        ({"event": "blob.refused", "relay": "12D3", "reason": "full"}, "relay 12D3 does not accept a blob: full"),
        ({"event": "blob.refused", "step": 1, "index": 2, "why": "cut"}, "step 1, index 2: rollouts refused: cut"),
        ({"event": "row.unconfirmed", "kind": "receipt/1", "cause": "none"}, "a record of this node yet (receipt/1)"),
        ({"event": "weights.fetched", "policy_step": 10}, "checkpoint 10 is committed, and complete on this disk"),
        ({"event": "strikes.delayed", "why": "no answer"}, "strikes cannot be looked at yet: no answer"),
    ],
)
def test_format_line__says_it_in_words(event: dict[str, Any], said: str) -> None:
    assert said in format_line({"ts": 0.0, "level": "info", "role": "relay", **event})


def test_format_line__warning_is_marked_and_exceptions_stay_in_the_file() -> None:
    event = {"ts": 0.0, "level": "warning", "role": "relay", "event": "rows.unread", "exception": "Traceback .."}
    assert format_line(event).endswith("relay     WARNING rows.unread")
