"""Compile the registry: `python -m ledger.contracts.build` rewrites `run_registry.json` from `run_registry.vy`.

Needs the pinned vyper, which a node never does: nodes read the built file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "run_registry.vy"
BUILT = FOLDER / "run_registry.json"


def compile_registry() -> dict[str, Any]:
    """ABI, bytecodes, compiler version and source digest of the contract as the installed vyper makes it."""
    import vyper

    source = SOURCE.read_text()
    made = vyper.compile_code(source, output_formats=["abi", "bytecode", "bytecode_runtime"])
    return {
        "abi": made["abi"],
        "bytecode": made["bytecode"],
        "bytecode_runtime": made["bytecode_runtime"],
        "compiler": f"vyper {vyper.__version__}",
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }


def main() -> None:
    """Write the built file."""
    BUILT.write_text(json.dumps(compile_registry(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
