"""A story: events aggregated in bounded tables that a reader can catch up with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.log import EventStream
from node.phrases import phrase_of
from node.status.metrics import format_metrics, read_daemon_metrics
from node.status.stages import STAGES, span_of
from node.status.story import Story
from node.status.submissions import sentence_of
from node.status.tables import Tables
from roles.rules import Reason
from tests.browser.told import Network, told_network

ROOT = Path(__file__).parents[3]


def node(story: Story, name: str) -> dict[str, Any]:
    return dict(story.tables.get("node", name))


def submission(story: Story, key: str) -> dict[str, Any]:
    return dict(story.tables.get("submission", key))


# -- tables -----------------------------------------------------------------------------------------------------------


def test_since__each_row_once_as_it_stands_now() -> None:
    tables = Tables({"a": 10, "b": 10})
    tables.put("a", "x", {"n": 1})
    seen = tables.number
    for count in (2, 3):
        tables.put("a", "x", {"n": count})
    tables.put("b", "y", {"n": 4})
    assert [(change.key, change.row["n"]) for change in tables.since(seen)] == [("x", 3), ("y", 4)]
    assert tables.since(tables.number) == []


def test_put__what_stands_already_is_no_change() -> None:
    tables = Tables({"a": 10})
    tables.put("a", "x", {"n": 1})
    number = tables.number
    tables.put("a", "x", {"n": 1})
    assert tables.number == number


def test_put__the_row_that_changed_longest_ago_goes_first() -> None:
    tables = Tables({"a": 2})
    for key in ("x", "y", "x", "z"):
        tables.put("a", key, {"n": tables.number})
    assert [key for key, _ in tables.rows("a")] == ["x", "z"]


def test_since__only_the_newest_of_a_long_table() -> None:
    tables = Tables({"log": 100, "a": 100})
    for count in range(10):
        tables.put("log", str(count), {"n": count})
        tables.put("a", str(count), {"n": count})
    changes = tables.since(0, newest={"log": 2})
    assert [change.key for change in changes if change.table == "log"] == ["8", "9"]
    assert sum(change.table == "a" for change in changes) == 10


# -- submissions ------------------------------------------------------------------------------------------------------


def test_take__quorum_accepts_and_credits_the_worker() -> None:
    network = told_network(steps=0)
    key = network.submit("worker-1", 1)
    row = submission(network.story, key)
    assert (row["outcome"], row["tokens"], len(row["votes"])) == ("accepted", 900, 3)
    assert row["made"] < row["sent"] < row["decided"]
    assert (node(network.story, "worker-1")["accepted"], node(network.story, "worker-1")["tokens"]) == (1, 900)
    assert node(network.story, "validator-2")["judged"] == 1


def test_take__quorum_refuses_with_the_reason__ux_01() -> None:
    network = told_network(steps=0)
    row = submission(network.story, network.submit("worker-1", 3, is_wrong=True))
    assert (row["outcome"], row["reason"]) == ("refused", "sampling_mismatch")
    assert row["why"] == sentence_of("sampling_mismatch")
    assert (node(network.story, "worker-1")["refused"], node(network.story, "worker-1")["faults"]) == (1, 1)
    assert network.story.tables.get("reason", "sampling_mismatch") == {"count": 1}


def test_sentence_of__every_reason_has_one() -> None:
    assert all(sentence_of(reason.name.lower()) for reason in Reason)
    assert sentence_of("of a later version") == ""


def test_take__one_verdict_decides_nothing() -> None:
    network = told_network(steps=0, validators=1)
    assert submission(network.story, network.submit("worker-1", 1))["outcome"] == "waiting"


def test_take__without_a_quorum_the_worker_says() -> None:
    story = Story()
    place = {"step": 2, "index": 1, "submission": "cd" * 32}
    story.take("worker", {"ts": 1.0, "event": "submission.sent", "tokens": 5, "relays": 1, **place})
    story.take("worker", {"ts": 2.0, "event": "submission.refused", "reason": "computation", **place})
    assert submission(story, "worker/2/1")["reason"] == "computation"


def test_take__refusal_overturned_counts_once() -> None:
    network = told_network(steps=0)
    key = network.submit("worker-1", 1, is_wrong=True)
    for validator in network.names("validator"):
        network.say(
            validator, "verdict.signed", step=1, index=0, submission=submission(network.story, key)["digest"],
            node="12D3KooWworker-1", tokens=900, outcome="accept", reason="accepted",
        )  # fmt: skip
    assert submission(network.story, key)["outcome"] == "accepted"
    assert (network.story.totals["accepted"], network.story.totals["refused"]) == (1, 0)
    assert node(network.story, "worker-1")["refused"] == 0
    text = format_metrics(STATUS, network.story)
    assert 'intellect_node_submissions_total{outcome="refused"} 1.0\n' in text, "a counter never falls"


def test_take__given_up_as_unjudged_and_accepted_late_counts_once() -> None:
    story = Story()
    for kind in ("submission.unjudged", "submission.accepted"):
        story.take("worker", {"ts": 1.0, "event": kind, "step": 2, "index": 1, "submission": "cd" * 32, "tokens": 5})
    assert (story.totals["accepted"], story.totals["unjudged"]) == (1, 0)


def test_take__two_submissions_of_one_place_are_two_rows() -> None:
    network = told_network(steps=0)
    network.submit("worker-1", 1)
    network.say("worker-1", "submission.sent", step=1, index=0, submission="ee" * 32, tokens=1, relays=1)
    assert len(network.story.tables.rows("submission")) == 2


def test_credit__in_which_tally() -> None:
    network = told_network(steps=0)
    key = network.submit("worker-2", 1)
    network.story.credit(3, [("12D3KooWworker-2", 1, 0), ("12D3KooWnobody", 9, 9)])
    assert submission(network.story, key)["epoch"] == 3
    assert len(network.story.tables.rows("submission")) == 1


def test_take__worker_known_by_its_submissions_only() -> None:
    story = Story()
    story.describe(quorum=1)
    stranger = "12D3KooWFLLMswbpvCHwzEWd5NEZGtZKcQzJd8PYZhfqbQB3KnVG"
    verdict = {"step": 1, "index": 0, "submission": "ab" * 32, "outcome": "accept", "reason": "accepted", "tokens": 4}
    story.take("validator", {"ts": 1.0, "event": "verdict.signed", "node": stranger, **verdict})
    assert node(story, "12D3Ko..KnVG")["state"] == "elsewhere"
    assert node(story, "12D3Ko..KnVG")["tokens"] == 4


def test_take__ejected_node_is_struck_out() -> None:
    network = told_network(steps=0)
    network.say("validator-1", "node.ejected", node="12D3KooWworker-2", number=0)
    assert node(network.story, "worker-2")["state"] == "struck out"


# -- whatever comes ---------------------------------------------------------------------------------------------------


def test_take__event_nobody_foresaw_is_a_sentence() -> None:
    story = Story()
    story.take("relay-1", {"ts": 1.0, "level": "info", "event": "receipt.counted", "bytes": 12, "epoch": 3})
    assert node(story, "relay-1")["said"] == "receipt counted: bytes 12, epoch 3"


@pytest.mark.parametrize("event", [{}, {"event": "x"}, {"event": "step.opened", "step": "7"}, {"event": 3, "ts": None}])
def test_take__damaged_events_are_no_error(event: dict[str, Any]) -> None:
    story = Story()
    story.take("relay-1", event)
    assert len(story.tables.rows("log")) == 1


def test_listeners__a_fault_of_who_looks_on_stops_nobody(tmp_path: Path) -> None:
    stream, story = EventStream(tmp_path / "events.jsonl"), Story()
    stream.listeners.append(lambda event: story.take("worker", {**event, "tokens": object()}))
    stream.write({"event": "submission.accepted", "step": 1, "index": 0})
    stream.close()
    assert (tmp_path / "events.jsonl").read_text() == '{"event":"submission.accepted","step":1,"index":0}\n'


def test_take__what_others_chose_is_cut() -> None:
    story = Story()
    story.take("relay-1", {"ts": 1.0, "event": "blob.refused", "why": "x" * 10_000, "more": {"deep": ["y" * 10_000]}})
    assert len(json.dumps(story.tables.rows("log")[0][1])) < 2_500


def test_take__ten_thousand_events_stay_bounded() -> None:
    story = Story(limits={"log": 500, "span": 100, "submission": 50, "step": 20})
    network = Network(story=story)
    network.start()
    for step in range(1, 700):
        network.step(step)
    assert network.said > 10_000
    assert {name: len(story.tables.rows(name)) for name in ("log", "span", "submission", "step")} == {
        "log": 500, "span": 100, "submission": 50, "step": 20,
    }  # fmt: skip


def test_take__step_keeps_every_number_of_the_training() -> None:
    row = told_network(steps=2).story.tables.get("step", "2")
    assert (row["entropy"], row["clipped_low"], row["committed"] > row["trained"]) == (0.04, 0.001, True)


def test_take__what_a_checkpoint_cost_to_fetch() -> None:
    story = Story()
    fetched = {"event": "checkpoint.fetched", "ts": 1.0, "step": 4, "full": 0, "delta": 700, "seconds": 0.5}
    story.take("worker-1", fetched)
    assert story.tables.get("step", "4")["fetched"] == 700
    assert [row["stage"] for _, row in story.tables.rows("span")] == ["broadcast"]


def test_span_of__training_ends_before_its_checkpoint_is_saved() -> None:
    event = {"event": "step.trained", "ts": 10.0, "seconds": 2.0, "step": 3, "timeline": {"train": 2.0, "save": 0.5}}
    span = span_of(event)
    assert span is not None
    assert (span.begun, span.ended, span.step) == (7.5, 9.5, 3)
    assert span_of({"event": "verdict.signed", "ts": 1.0}) is None


def test_stages__are_events_that_are_logged_with_their_seconds() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "roles").rglob("*.py"))
    assert all(f'"{event}"' in sources for event in STAGES)


# -- metrics ----------------------------------------------------------------------------------------------------------

STATUS = {
    "role": "worker", "node": "12D3KooW", "step": 3, "loop_lag_p99_seconds": 0.25, "is_up": True,
    "events": {"submission.sent": 2, 'odd"name\n': 1},
}  # fmt: skip


def test_format_metrics__numbers_counts_and_the_newest_step() -> None:
    text = format_metrics(STATUS, told_network(steps=6).story)
    assert "intellect_node_loop_lag_p99_seconds 0.25\n" in text
    assert 'intellect_node_events_total{event="submission.sent"} 2.0\n' in text
    assert 'intellect_node_events_total{event="odd\\"name\\n"} 1.0\n' in text
    assert 'intellect_node_submissions_total{outcome="refused"} 2.0\n' in text
    assert 'intellect_node_refusals_total{reason="sampling_mismatch"} 1.0\n' in text
    assert "intellect_node_step_reward 0.48\n" in text
    assert "is_up" not in text


async def test_read_daemon_metrics__only_its_own_families() -> None:
    told = "# HELP process_x y\nprocess_x 1\n# TYPE libp2p_conns gauge\nlibp2p_conns 4\ngo_threads 9\n"
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, text=told))) as http:
        assert await read_daemon_metrics("http://p2pd/metrics", http) == (
            "# TYPE libp2p_conns gauge\nlibp2p_conns 4\ngo_threads 9\n"
        )


async def test_read_daemon_metrics__none_while_it_does_not_answer() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(500))) as http:
        assert await read_daemon_metrics("http://p2pd/metrics", http) == ""
        assert await read_daemon_metrics(None, http) == ""


def test_dashboard__every_metric_it_names_is_told() -> None:
    text = (ROOT / "docs" / "grafana.json").read_text()
    wanted = set(re.findall(r"\b((?:intellect_node|process|libp2p)_\w+)", text))
    told = set(re.findall(r"^(\w+)", format_metrics(STATUS, told_network(steps=6).story), re.MULTILINE))
    in_status = [
        name
        for file in ("status/of_node.py", "status/facts.py")
        for name in re.findall(r'"(\w+)": ', (ROOT / "node" / file).read_text())
    ]
    in_stats = re.findall(r'"(\w+)": ', (ROOT / "dht" / "directory.py").read_text())
    told |= {f"intellect_node_{name}" for name in (*in_status, *(f"dht_{name}" for name in in_stats))}
    told |= {"libp2p_rcmgr_connections"}  # the directory's tests ask a daemon for it
    assert len(wanted) > 15
    assert wanted <= told


# -- the on-line filter -----------------------------------------------------------------------------------------------


def test_story__counts_the_groups_that_teach_nothing() -> None:
    story = Story()
    for step, dropped in ((1, 5), (2, 7)):
        event = {"ts": 1.0, "event": "batch.closed", "step": step, "reward": 0.5, "groups": 16, "dropped": dropped}
        story.take("trainer", event)
    assert story.tables.get("step", "2")["dropped"] == 7
    text = format_metrics({"node": "n", "role": "trainer"}, story)
    assert 'intellect_node_groups_total{fate="used"} 32.0' in text
    assert 'intellect_node_groups_total{fate="dropped"} 12.0' in text


def test_phrase__of_a_batch_says_how_many_groups_were_dropped() -> None:
    event = {"event": "batch.closed", "step": 3, "reward": 0.25, "groups": 16, "dropped": 9}
    assert phrase_of(event) == "step 3: batch complete, mean reward 0.25; 16 groups teach something, 9 dropped"
