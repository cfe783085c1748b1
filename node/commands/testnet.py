"""`intellect-node testnet`: a whole network on this machine."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.testnet.plan import TestnetOptions

EXAMPLES = """\
  intellect-node testnet --steps 40
  intellect-node testnet --workers 3 --validators 5 --relays 3 --seed 7
  intellect-node testnet --trainers 2                              kill the first: the second takes over
  intellect-node testnet --dir ./net --plain                       lines for a log, everything kept in ./net
  intellect-node testnet --adversary hybrid,inflated-rewards       two more workers, that cheat: see them refused
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = _parser()
    options = parser.parse_args(words)
    if options.adversary == "list":
        return _list_adversaries()
    from node.testnet.network import run_testnet
    from node.testnet.setup import check_draft

    wanted = _wanted(options)
    if options.adversary and not wanted.adversaries:
        parser.error(
            f"--adversary {options.adversary} names no kind; intellect-node testnet --adversary list prints them"
        )
    wanted.check()
    check_draft(wanted)
    temporary = options.dir is None
    if temporary:  # only now, so that a wrong option leaves no folder behind
        wanted = replace(wanted, directory=Path(tempfile.mkdtemp(prefix="intellect-testnet-")))
    return run_testnet(wanted, plain=options.plain, remove=temporary and not options.keep)


def _parser() -> Parser:
    parser = Parser(
        "intellect-node testnet",
        "A whole network on this machine: chain, trainer, workers, validators and relays as processes of their own.",
        examples=EXAMPLES,
    )
    parser.add_argument("--workers", type=int, default=2, help="how many")
    parser.add_argument("--validators", type=int, default=3, help="how many; the quorum is more than half")
    parser.add_argument("--relays", type=int, default=2, help="how many")
    parser.add_argument("--trainers", type=int, default=1, help="how many; the first leads, the others stand by")
    parser.add_argument("--steps", type=int, default=30, help="updates of the policy")
    parser.add_argument(
        "--adversary",
        default="",
        metavar="KIND[,KIND]",
        help="add a worker that cheats in this way, for each kind named; `list` prints them",
    )
    parser.add_argument("--model", type=Path, help="folder of the base model (default: the built-in one)")
    parser.add_argument("--spec", type=Path, help="draft of the run as TOML (default: the built-in one)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the keys, and so of prompts and sampling")
    parser.add_argument("--dir", type=Path, help="folder for everything (default: a temporary one)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the temporary folder at the end (it is kept anyway when something went wrong)",
    )
    parser.add_argument("--picture", type=Path, help="file for the view after the last step, as SVG")
    parser.add_argument("--page-port", type=int, default=0, help="port of the page; 0 takes a free one")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live view")
    return parser


def _wanted(options: argparse.Namespace) -> TestnetOptions:
    """The options in the form the testnet takes; `directory` is empty where none is named."""
    from node.testnet.plan import TestnetOptions

    return TestnetOptions(
        directory=_absolute(options.dir) if options.dir is not None else Path(),
        workers=options.workers,
        validators=options.validators,
        relays=options.relays,
        trainers=options.trainers,
        steps=options.steps,
        seed=options.seed,
        model=_absolute(options.model) if options.model else None,
        draft=options.spec,
        picture=options.picture,
        page_port=options.page_port,
        adversaries=tuple(word.strip() for word in options.adversary.split(",") if word.strip()),
    )


def _list_adversaries() -> int:
    from node.testnet.adversaries.kinds import KINDS

    for name, kind in KINDS.items():
        print_line(f"{name:20} {kind.says}{'' if kind.is_certain else ' *'}")
    print_line("* found by statistics, as far as the policy gives any; the others are always refused")
    return 0


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()
