"""Deploys the registry contract to a chain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eth_utils.crypto import keccak

from ledger import abi
from ledger.answers import deployed_at
from ledger.policy import DEFAULT_POLICY, ChainPolicy
from ledger.rpc import ExpectedChain, Rpc
from ledger.sender import open_sender
from ledger.wallet import checked_address


@dataclass(frozen=True, slots=True)
class Deployment:
    """The chain, address and code of a deployed contract, which a run spec pins. `code_hash` is
    keccak256 of the code on chain."""

    contract: str
    chain_id: int
    block_hash: str
    code_hash: str


async def deploy(
    url: str, key: bytes, *, state_dir: Path | None = None, policy: ChainPolicy = DEFAULT_POLICY
) -> Deployment:
    """Deploy the registry contract, paid for by `key`, and check the code on chain. With `state_dir`, a deployment
    begun or done before is not repeated. Raises LedgerUnavailable, LowBalance, LedgerMismatch."""
    rpc = Rpc([url])
    try:
        chain_id, _ = await rpc.connect()
        sender = open_sender(rpc, key, chain_id=chain_id, state_dir=state_dir, policy=policy)
        receipt = await sender.deploy(abi.built()["bytecode"])
        contract = checked_address(deployed_at(receipt))
        checked = Rpc([url], contract=contract, expected=ExpectedChain(chain_id, built_code_hash()))
        try:
            _, code_hash = await checked.connect()
        finally:
            await checked.close()
        return Deployment(contract, chain_id, receipt["blockHash"][2:], code_hash)
    finally:
        await rpc.close()


def built_code_hash() -> str:
    """keccak256 of the contract code that this version puts on a chain."""
    return str(keccak(abi.unhex(abi.built()["bytecode_runtime"])).hex())
