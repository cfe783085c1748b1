"""Counters of a relay, as numbers and as Prometheus text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "intellect_relay"


@dataclass(slots=True)
class Counters:
    """Counts since the start. Bytes are those of blobs, without headers."""

    bytes_served: int = 0
    bytes_received: int = 0
    bytes_pulled: int = 0
    uploads: int = 0
    sponsored: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)


def prometheus_text(counters: Counters, gauges: Mapping[str, int]) -> str:
    """The text format, version 0.0.4."""
    registry = CollectorRegistry()
    registry.register(_Numbers(counters, gauges))
    return generate_latest(registry).decode()


class _Numbers(Collector):
    def __init__(self, counters: Counters, gauges: Mapping[str, int]) -> None:
        self._counters, self._gauges = counters, gauges

    def collect(self) -> Iterator[Metric]:
        for name in ("bytes_served", "bytes_received", "bytes_pulled", "uploads", "sponsored"):
            yield CounterMetricFamily(f"{PREFIX}_{name}", "Since the start.", getattr(self._counters, name))
        yield _counter("requests", "Requests by status.", "status", self._counters.requests)
        yield _counter("refusals", "Refusals by reason.", "code", self._counters.refusals)
        for name, value in self._gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", "Now.", value)


def _counter(name: str, text: str, label: str, counts: Mapping[int, int] | Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family
