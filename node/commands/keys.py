"""`intellect-node keys new|show`: the node's key, and operator or wallet keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from node.cli import Parser, print_line

EXAMPLES = """\
  intellect-node keys new --key ./node.key           a node's identity
  intellect-node keys new --operator ./operator.key  an account: pays gas, or is a wallet
  intellect-node keys show --key ./node.key          its node id, as a run's spec names it
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node keys",
        "Make or show keys. A node key identifies a node; an operator or wallet key signs on the ledger.",
        examples=EXAMPLES,
    )
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
    if make:
        given = "" if path == Path("~/.intellect-node/node.key").expanduser() else f" --key {path}"
        say(f"keep a copy of the file; take part with: intellect-node --role worker{given} --join .. --wallet ..")
    return 0


def _operator(path: Path, *, make: bool) -> int:
    from ledger.keystore import load_key, save_key
    from ledger.wallet import address_of, new_key

    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_key(path, new_key())
    print_line(f"address {address_of(load_key(path))}")
    print_line(f"file {path}")
    if make:
        say(
            "the file is not encrypted: keep it to yourself, and a copy elsewhere. Name it by --operator-key (pays gas)"
        )
        say("or by --wallet (is credited)")
    return 0


def say(text: str) -> None:
    """A hint, apart from the output that a script reads."""
    sys.stderr.write(text + "\n")
