"""`intellect-node keys new|show`: the node's key, and operator or wallet keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.cli import Parser, print_line


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser("intellect-node keys", "Make or show keys. A node key identifies a node; an operator key pays gas.")
    parser.add_argument("action", choices=("new", "show"))
    parser.add_argument("--key", type=Path, help="the node's key file", default=Path("~/.intellect-node/node.key"))
    parser.add_argument("--operator", type=Path, help="make or show an operator (or wallet) key file instead")
    options = parser.parse_args(words)
    if options.operator is not None:
        return _operator(options.operator.expanduser(), make=options.action == "new")
    return _node(options.key.expanduser(), make=options.action == "new")


def _node(path: Path, *, make: bool) -> int:
    from dht.identity import NodeKey

    if make:
        key = NodeKey.generate()
        key.save(path)
    else:
        key = NodeKey.load(path)
    print_line(f"node {key.node}")
    print_line(f"file {path}")
    return 0


def _operator(path: Path, *, make: bool) -> int:
    from ledger.wallet import address_of, load_key, new_key, save_key

    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_key(path, new_key())
    print_line(f"address {address_of(load_key(path))}")
    print_line(f"file {path}")
    return 0
