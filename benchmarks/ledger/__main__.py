"""Costs of the ledger.

python -m benchmarks.ledger [--quick] [--only NAME ...]

Each part prints its table; the last line contains all of it as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.command import finish, run
from benchmarks.ledger import gas, sender, tally, trees

PARTS: Mapping[str, Callable[[bool], dict[str, Any]]] = {
    "gas": gas.measure,
    "sender": sender.measure,
    "trees": trees.measure,
    "tally": tally.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description="What the ledger costs.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS), help="these parts")
    options = parser.parse_args(arguments)
    found = {name: PARTS[name](options.quick) for name in options.only}
    finish("ledger", **found)
    return 0


if __name__ == "__main__":
    run(main)
