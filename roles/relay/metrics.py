"""Counters of a relay, as numbers and as Prometheus text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What happened since the start; bytes are of blobs, not of headers."""

    bytes_served: int = 0
    bytes_received: int = 0
    bytes_pulled: int = 0
    uploads: int = 0
    sponsored: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)


def prometheus_text(counters: Counters, gauges: dict[str, int]) -> str:
    """The text format, version 0.0.4."""
    lines: list[str] = []
    for name in ("bytes_served", "bytes_received", "bytes_pulled", "uploads", "sponsored"):
        full = f"intellect_relay_{name}_total"
        lines += [f"# TYPE {full} counter", f"{full} {getattr(counters, name)}"]
    lines.append("# TYPE intellect_relay_requests_total counter")
    lines += [
        f'intellect_relay_requests_total{{status="{status}"}} {count}'
        for status, count in sorted(counters.requests.items())
    ]
    lines.append("# TYPE intellect_relay_refusals_total counter")
    lines += [
        f'intellect_relay_refusals_total{{code="{code}"}} {count}' for code, count in sorted(counters.refusals.items())
    ]
    for name, value in gauges.items():
        lines += [f"# TYPE intellect_relay_{name} gauge", f"intellect_relay_{name} {value}"]
    return "\n".join(lines) + "\n"
