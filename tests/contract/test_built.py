"""The built file that nodes read is what the pinned compiler makes of the source."""

from __future__ import annotations

import pytest

from ledger import abi


def test_built__is_what_the_pinned_compiler_makes() -> None:
    pytest.importorskip("vyper")
    from ledger.contracts.build import compile_registry

    assert abi.built() == compile_registry()


def test_built__names_the_pinned_compiler() -> None:
    assert abi.built()["compiler"].startswith("vyper 0.4.3")


def test_built__fits_on_a_chain() -> None:
    assert len(abi.unhex(abi.built()["bytecode_runtime"])) <= 24_576  # EIP-170
