"""Other contracts that the registry deals with: tokens and wallets, compiled from
`contracts/` and deployed on its chain."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import decode, encode
from eth_utils.crypto import keccak

from ledger import abi
from ledger.errors import LedgerRejected
from ledger.evm import Reverted
from ledger.wallet import NO_ADDRESS, address_of
from tests.contract.harness import OWNER, Registry

FOLDER = Path(__file__).parent / "contracts"


@functools.cache
def compiled(name: str) -> dict[str, Any]:
    """ABI and bytecode of a source. Skips the test where the compiler is not installed."""
    vyper = pytest.importorskip("vyper")
    made: dict[str, Any] = vyper.compile_code((FOLDER / f"{name}.vy").read_text(), output_formats=["abi", "bytecode"])
    return made


class Counterpart:
    """A deployed contract."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry = registry
        self._abi = {entry["name"]: entry for entry in compiled(name)["abi"] if entry["type"] == "function"}
        self.address: str = registry.transact(OWNER, None, compiled(name)["bytecode"])["contractAddress"]

    def call(self, key: bytes, name: str, *arguments: object, value: int = 0) -> None:
        """Send a call. Raises LedgerRejected with the reason when it reverts."""
        data = self._encode(name, arguments)
        try:
            self.registry.chain.call(sender=address_of(key), to=self.address, data=data, value=value)
        except Reverted as error:
            raise LedgerRejected(abi.revert_reason(error.data) or "no reason") from error
        receipt = self.registry.transact(key, self.address, "0x" + data.hex(), value=value)
        assert receipt["status"] == "0x1"

    def view(self, name: str, *arguments: object) -> Any:
        """Result of a view function."""
        output, _ = self.registry.chain.call(sender=NO_ADDRESS, to=self.address, data=self._encode(name, arguments))
        return decode([each["type"] for each in self._abi[name]["outputs"]], output)[0]

    def _encode(self, name: str, arguments: tuple[object, ...]) -> bytes:
        types = [each["type"] for each in self._abi[name]["inputs"]]
        return bytes(keccak(text=f"{name}({','.join(types)})")[:4] + encode(types, arguments))
