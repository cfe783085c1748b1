"""`intellect-node status`: what the node on this machine is doing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from node.parsing import Parser, print_line

EXAMPLES = """\
  intellect-node status                                  one look
  intellect-node status --watch                          the page's figures in the terminal, until Ctrl-C
  intellect-node status --data DIRECTORY --json          of another folder, a testnet's too; for a script
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node status",
        "What the node on this machine does. Its page shows the same: the last line says where.",
        examples=EXAMPLES,
    )
    parser.add_argument("--data", type=Path, default=Path("~/.intellect-node"), help="the node's data folder")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--json", action="store_true", help="everything, as JSON")
    way.add_argument("--watch", action="store_true", help="drawn anew every second, until Ctrl-C")
    options = parser.parse_args(words)
    home = options.data.expanduser()
    from node.status.client import page_url, read_status

    if options.watch:
        from node.status.watch import watch

        with contextlib.suppress(KeyboardInterrupt):
            watch(home)
        return 0
    status = read_status(home)
    if options.json:
        print_line(json.dumps(status, indent=2))
        return 0
    from node.status.watch import summary_lines

    for line in [*summary_lines(status), f"{'page':12} {page_url(home)}"]:
        print_line(line)
    return 0
