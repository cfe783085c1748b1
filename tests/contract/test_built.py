"""The built file that nodes read is exactly the pinned compiler's output for the source."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ledger import abi

pytestmark = pytest.mark.no_cover  # the compiler's lines, not ours: traced, it takes as long again


def test_built__is_what_the_pinned_compiler_makes() -> None:
    pytest.importorskip("vyper")
    from ledger.contracts.build import compile_registry

    assert abi.built() == compile_registry()


def test_built__every_call_is_documented() -> None:
    vyper = pytest.importorskip("vyper")
    from vyper.compiler.input_bundle import FilesystemInputBundle

    from ledger.contracts.build import FOLDER, MAIN

    made = vyper.compile_code(
        (FOLDER / MAIN).read_text(),
        contract_path=MAIN,
        input_bundle=FilesystemInputBundle([FOLDER]),
        output_formats=["abi", "userdoc", "devdoc"],
    )
    getters = set(re.findall(r"^(\w+): public\(", (FOLDER / MAIN).read_text(), re.MULTILINE))
    functions = [each for each in made["abi"] if each["type"] == "function" and each["name"] not in getters]
    for function in functions:
        name = f"{function['name']}({','.join(canonical(each) for each in function['inputs'])})"
        assert made["userdoc"]["methods"][name]["notice"], name
        wanted = {each["name"] for each in function["inputs"]}
        assert set(made["devdoc"]["methods"].get(name, {}).get("params", {})) == wanted, name


def canonical(field: dict[str, Any]) -> str:
    """A parameter's type as signatures have it."""
    if not field["type"].startswith("tuple"):
        return str(field["type"])
    return f"({','.join(canonical(each) for each in field['components'])}){field['type'].removeprefix('tuple')}"


def test_built__names_the_pinned_compiler() -> None:
    assert abi.built()["compiler"].startswith("vyper 0.4.3")


def test_built__fits_on_a_chain() -> None:
    assert len(abi.unhex(abi.built()["bytecode_runtime"])) <= 24_576  # EIP-170
