"""`intellect-node status`: what the node on this machine does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from node.cli import Parser, print_line

HIDDEN = ("events", "recent")


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser("intellect-node status", "What the node on this machine does.")
    parser.add_argument("--data", type=Path, default=Path("~/.intellect-node"), help="the node's data folder")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    options = parser.parse_args(words)
    from node.status.client import read_status

    status = read_status(options.data.expanduser())
    if options.json:
        print_line(json.dumps(status, indent=2))
        return 0
    for name, value in status.items():
        if name not in HIDDEN:
            print_line(f"{name:16} {value}")
    return 0
