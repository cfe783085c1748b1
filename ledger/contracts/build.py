"""Compile the registry: `python -m ledger.contracts.build` rewrites `run_registry.json` from the `.vy` files here.

Needs the pinned vyper. A node does not, because it reads the built file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MAIN = "run_registry.vy"
BUILT = FOLDER / "run_registry.json"


def compile_registry() -> dict[str, Any]:
    """ABI, bytecodes, compiler version and source digest of the contract as the installed vyper makes it."""
    import vyper
    from vyper.compiler.input_bundle import FilesystemInputBundle

    made = vyper.compile_code(
        (FOLDER / MAIN).read_text(),
        contract_path=MAIN,
        input_bundle=FilesystemInputBundle([FOLDER]),
        output_formats=["abi", "bytecode", "bytecode_runtime"],
    )
    return {
        "abi": made["abi"],
        "bytecode": made["bytecode"],
        "bytecode_runtime": made["bytecode_runtime"],
        "compiler": f"vyper {vyper.__version__}",
        "source_sha256": source_digest(),
    }


def source_digest() -> str:
    """SHA-256 over the SHA-256 lines of all sources, by name: what `sha256sum *.vy | sha256sum` prints."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(FOLDER.glob("*.vy"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def main() -> None:
    """Write the built file."""
    BUILT.write_text(json.dumps(compile_registry(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
