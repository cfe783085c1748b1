"""Which relays a node uses over time: simulated transfers of 1 MB from unequal relays, one of which comes and goes.

python -m benchmarks.shardcast.choice

Prints each relay's share of the traffic per span of transfers and, in brackets, its share in proportion to the speeds.
That is the optimum where many readers share each relay's line.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence

from benchmarks.command import finish, run
from roles.shardcast.server_choice import ServerChoice

SPEEDS = {"a": 40.0, "b": 20.0, "c": 10.0, "d": 5.0, "flaps": 25.0}
"""MB/s."""
SPANS = ((40, False), (200, False), (12, True), (200, True), (100, False), (400, False))
"""Transfers, and whether `flaps` is down during them."""


def run_span(choice: ServerChoice, draw: random.Random, transfers: int, *, is_down: bool) -> Counter[str]:
    """How often each relay was chosen first."""
    asked = Counter[str]()
    for _ in range(transfers):
        relay = choice.order(SPEEDS)[0]
        asked[relay] += 1
        if is_down and relay == "flaps":
            choice.failed(relay)
        else:
            choice.succeeded(relay, size=10**6, seconds=draw.uniform(0.7, 1.3) / SPEEDS[relay])
    return asked


def optimum(*, is_down: bool) -> dict[str, float]:
    """Shares in proportion to the speeds."""
    up = {relay: speed for relay, speed in SPEEDS.items() if not (is_down and relay == "flaps")}
    return {relay: up.get(relay, 0.0) / sum(up.values()) for relay in SPEEDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, print the JSON line."""
    description = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser(prog="python -m benchmarks.shardcast.choice", description=description).parse_args(arguments)
    rows = []
    draw = random.Random(1)
    choice = ServerChoice(draw=random.Random(2), clock=lambda: 0.0)
    sys.stdout.write(f"{'transfers':>10}{'flaps is':>10}" + "".join(f"{relay:>16}" for relay in SPEEDS) + "\n")
    for transfers, is_down in SPANS:
        asked = run_span(choice, draw, transfers, is_down=is_down)
        best = optimum(is_down=is_down)
        shares = "".join(f"{asked[relay] / transfers:>9.0%} ({best[relay]:>4.0%})" for relay in SPEEDS)
        sys.stdout.write(f"{transfers:>10}{'down' if is_down else 'up':>10}{shares}\n")
        found = {relay: round(asked[relay] / transfers, 4) for relay in SPEEDS}
        rows.append({"transfers": transfers, "is_down": is_down, "shares": found, "best": best})
    finish("shardcast.choice", rows=rows)
    return 0


if __name__ == "__main__":
    run(main)
