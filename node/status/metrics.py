"""A node's numbers in Prometheus text format.

Every number of the status is a gauge `intellect_node_<name>`; the newest step's are `intellect_node_step_<name>`;
events, submissions and refusals are counters. p2pd's own metrics follow. docs/operate.md lists what is worth an alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from node.status.story import Story

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "intellect_node"
LABELS = ("node", "role", "version", "run")
OF_DAEMON = ("libp2p_", "go_")
DAEMON_SECONDS, MAX_DAEMON_BYTES = 2.0, 2**20
OUTCOMES = ("accepted", "refused", "unjudged", "dropped")


def format_metrics(status: Mapping[str, Any], story: Story) -> str:
    """All metrics, as text."""
    registry = CollectorRegistry()
    registry.register(_Numbers(status, story))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


async def read_daemon_metrics(url: str | None, http: httpx.AsyncClient) -> str:
    """p2pd's metric families as it exports them, except those about its process, whose names we use
    ourselves; empty without a URL."""
    if url is None:
        return ""
    try:
        reply = await http.get(url, timeout=DAEMON_SECONDS)
    except httpx.HTTPError:
        return ""
    if reply.status_code != 200 or len(reply.content) > MAX_DAEMON_BYTES:
        return ""
    return "".join(
        f"{line}\n"
        for line in reply.text.splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(OF_DAEMON)
    )


class _Numbers(Collector):
    def __init__(self, status: Mapping[str, Any], story: Story) -> None:
        self._status, self._story = status, story

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            PREFIX, "Which node this is.", value={name: str(self._status.get(name, "")) for name in LABELS}
        )
        yield from _gauges(PREFIX, self._status, "Of the node's status.")
        yield from _gauges(f"{PREFIX}_step", self._newest_step(), "Of the newest trained step.")
        yield _counter("events", "Events by name.", "event", self._status.get("events", {}).items())
        totals = self._story.totals
        decided = ((name, self._story.decided[name]) for name in OUTCOMES)
        yield _counter("submissions", "Submissions by outcome; one overturned counts under both.", "outcome", decided)
        reasons = ((key, row["count"]) for key, row in self._story.tables.rows("reason"))
        yield _counter("refusals", "Refused submissions by reason.", "reason", reasons)
        groups = ((name, totals[f"groups_{name}"]) for name in ("used", "dropped"))
        yield _counter(
            "groups", "Groups of closed batches: learned from, or dropped for scoring alike.", "fate", groups
        )
        yield CounterMetricFamily(f"{PREFIX}_accepted_tokens", "Tokens of accepted submissions.", totals["tokens"])

    def _newest_step(self) -> Mapping[str, Any]:
        trained = [row for _, row in self._story.tables.rows("step") if "trained" in row]
        return max(trained, key=lambda row: int(row["step"]), default={})


def _gauges(prefix: str, values: Mapping[str, Any], text: str) -> Iterator[Metric]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield GaugeMetricFamily(f"{prefix}_{name}", text, value)


def _counter(name: str, text: str, label: str, counts: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for value, count in counts:
        family.add_metric([str(value)], count)
    return family
