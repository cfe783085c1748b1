"""`intellect-node testnet`: a whole network on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from node.cli import Parser


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node testnet",
        "A whole network on this machine: chain, trainer, workers, validators and relays as processes of their own.",
    )
    parser.add_argument("--workers", type=int, default=2, help="how many")
    parser.add_argument("--validators", type=int, default=3, help="how many; the quorum is more than half")
    parser.add_argument("--relays", type=int, default=2, help="how many")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy")
    parser.add_argument("--model", type=Path, help="folder of the base model (default: the built-in one)")
    parser.add_argument("--spec", type=Path, help="draft of the run as TOML (default: the built-in one)")
    parser.add_argument("--seed", type=int, default=1, help="of the keys, and so of prompts and sampling")
    parser.add_argument("--dir", type=Path, help="folder for everything (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep a temporary folder at the end")
    parser.add_argument("--picture", type=Path, help="file for the view after the last step, as SVG")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live view")
    options = parser.parse_args(words)
    from node.testnet.network import run_testnet
    from node.testnet.plan import TestnetOptions

    temporary = options.dir is None
    directory = Path(tempfile.mkdtemp(prefix="intellect-testnet-")) if temporary else options.dir.expanduser().resolve()
    wanted = TestnetOptions(
        directory=directory,
        workers=options.workers,
        validators=options.validators,
        relays=options.relays,
        steps=options.steps,
        seed=options.seed,
        model=options.model.expanduser().resolve() if options.model else None,
        draft=options.spec,
        picture=options.picture,
    )
    return run_testnet(wanted, plain=options.plain, remove=temporary and not options.keep)
