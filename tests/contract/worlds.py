"""A run on the contract and one on the model, behind the interface that nodes use, so that one test runs on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from eth_account import Account
from eth_utils.address import to_checksum_address

from ledger import abi
from ledger.base import BaseLedger
from ledger.client import LedgerClient
from ledger.devnet_rpc import DevnetRpc
from ledger.events import operator_tuples, term_tuple
from ledger.evm import CHAIN_ID
from ledger.json_rpc import RpcError
from ledger.memory import MemoryChain, MemoryLedger
from ledger.merkle import MerkleProof, merkle_proof, merkle_root
from ledger.records import ZERO_DIGEST, Leaf, Proposal, RunTerms
from ledger.rpc import Request
from ledger.sender import Sender
from ledger.wallet import Domain, address_of
from tests.anvil import ask_all, shared_anvil
from tests.contract.harness import (
    ADDRESSES,
    OWNER,
    RUN,
    START,
    STRANGER,
    TRAINER,
    VALIDATORS,
    Registry,
    digest,
    make_registry,
    make_terms,
)


class World(Protocol):
    """A newly created run."""

    @property
    def domain(self) -> Domain: ...

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        """The run as the holder of the key sees it now."""

    def skip(self, seconds: int) -> None:
        """Mine an empty block, `seconds` after the newest."""

    def coins(self, address: str) -> int:
        """Change of an address's balance in wei since the start, not counting gas."""


class DirectRpc:
    """The development chain's JSON-RPC without HTTP."""

    def __init__(self, registry: Registry) -> None:
        self._server = DevnetRpc(registry.chain)

    async def call(self, method: str, *parameters: object) -> Any:
        body = json.dumps({"id": 1, "method": method, "params": parameters}).encode()
        answer = json.loads(self._server.answer(body))
        if "error" in answer:
            error = answer["error"]
            raise RpcError(error["code"], error["message"], abi.unhex(error.get("data", "")))
        return answer["result"]

    async def together(self, *requests: Request) -> list[Any]:
        return [await self.call(method, *parameters) for method, *parameters in requests]

    async def everywhere(self, *requests: Request) -> list[list[Any]]:
        return [await self.together(*requests)]

    async def close(self) -> None:
        """Nothing to release."""

    def pass_over(self) -> None:
        """Does nothing: there is no other end-point."""


class ContractWorld:
    """The compiled contract on an EVM, through the client that every node uses."""

    def __init__(self, terms: RunTerms, registry: Registry | None = None) -> None:
        if registry:
            registry.create_run(terms)
        self.registry = registry or make_registry(terms)
        self._rpc = DirectRpc(self.registry)

    @property
    def domain(self) -> Domain:
        return self.registry.domain

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        sender = Sender(self._rpc, key, chain_id=CHAIN_ID, journal=None) if key else None
        return LedgerClient(self._rpc, domain=self.domain, code_hash="", run=RUN, operator_key=key, sender=sender)

    def skip(self, seconds: int) -> None:
        self.registry.skip(seconds)

    def coins(self, address: str) -> int:
        return self.registry.coins(address)


class ModelWorld:
    """The model behind `MemoryLedger`."""

    def __init__(self, terms: RunTerms) -> None:
        self._chain = MemoryChain(start=START)
        self._chain.mine()
        self._chain.create_run(terms)

    @property
    def domain(self) -> Domain:
        return self._chain.domain

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        return MemoryLedger(self._chain, run=RUN, operator_key=key)

    def skip(self, seconds: int) -> None:
        self._chain.mine(seconds=seconds)

    def coins(self, address: str) -> int:
        return self._chain.model.received[address]


class AnvilRpc:
    """JSON-RPC to anvil, and its clock: each block is one second later than its parent, as on our own chain."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, method: str, *parameters: object) -> Any:
        """Result. Raises RpcError."""
        answer = ask_all(self._url, method, *parameters)
        if "error" in answer:
            error = answer["error"]
            data = error.get("data")
            raise RpcError(error["code"], error["message"], abi.unhex(data) if isinstance(data, str) else b"")
        return answer["result"]

    async def call(self, method: str, *parameters: object) -> Any:
        return self.ask(method, *parameters)

    async def together(self, *requests: Request) -> list[Any]:
        return [self.ask(method, *parameters) for method, *parameters in requests]

    async def everywhere(self, *requests: Request) -> list[list[Any]]:
        return [await self.together(*requests)]

    async def close(self) -> None:
        """Nothing to release."""

    def pass_over(self) -> None:
        """Does nothing: there is no other end-point."""


class AnvilWorld:
    """The compiled contract on Foundry's EVM, on a chain that starts with it: what is really deployed."""

    _start: ClassVar[str | None] = None

    def __init__(self, terms: RunTerms) -> None:
        self._rpc = AnvilRpc(shared_anvil(ADDRESSES))
        if AnvilWorld._start is not None:
            self._rpc.ask("evm_revert", AnvilWorld._start)
        AnvilWorld._start = self._rpc.ask("evm_snapshot")
        self._rpc.ask("anvil_setBlockTimestampInterval", 1)
        self._before = {address: self._balance(address) for address in ADDRESSES}
        self._first = int(self._rpc.ask("eth_blockNumber"), 16) + 1
        receipt = self._transact(None, abi.built()["bytecode"])
        self._domain = Domain(CHAIN_ID, to_checksum_address(receipt["contractAddress"]))
        operators = operator_tuples(terms.validators), operator_tuples(terms.trainers)
        create = abi.encode_call("create_run", bytes.fromhex(RUN), term_tuple(terms), *operators)
        assert self._transact(self._domain.contract, create)["status"] == "0x1"

    @property
    def domain(self) -> Domain:
        return self._domain

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        sender = Sender(self._rpc, key, chain_id=CHAIN_ID, journal=None) if key else None
        return LedgerClient(self._rpc, domain=self.domain, code_hash="", run=RUN, operator_key=key, sender=sender)

    def skip(self, seconds: int) -> None:
        newest = self._rpc.ask("eth_getBlockByNumber", "latest", False)
        self._rpc.ask("evm_setNextBlockTimestamp", int(newest["timestamp"], 16) + seconds)
        self._rpc.ask("evm_mine")

    def coins(self, address: str) -> int:
        return self._balance(address) + self._gas_of(address) - self._before.get(address, 0)

    def _balance(self, address: str) -> int:
        return int(self._rpc.ask("eth_getBalance", address, "latest"), 16)

    def _gas_of(self, address: str) -> int:
        newest, spent = int(self._rpc.ask("eth_blockNumber"), 16), 0
        for number in range(self._first, newest + 1):
            for receipt in self._rpc.ask("eth_getBlockReceipts", hex(number)):
                if to_checksum_address(receipt["from"]) == address:
                    spent += int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
        return spent

    def _transact(self, to: str | None, data: str) -> dict[str, Any]:
        transaction = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": int(self._rpc.ask("eth_getTransactionCount", address_of(OWNER), "latest"), 16),
            "gas": 8_000_000,
            "maxFeePerGas": 10**10,
            "maxPriorityFeePerGas": 1,
            "data": data,
            "value": 0,
            **({"to": to} if to else {}),
        }
        raw = bytes(Account.sign_transaction(transaction, OWNER).raw_transaction)
        digest_of_it = self._rpc.ask("eth_sendRawTransaction", "0x" + raw.hex())
        found: dict[str, Any] | None = None
        while found is None:  # its block is made a moment later
            found = self._rpc.ask("eth_getTransactionReceipt", digest_of_it)
        return found


WORLDS: dict[str, Callable[[RunTerms], World]] = {
    "anvil": AnvilWorld,
    "contract": ContractWorld,
    "model": ModelWorld,
}
MONEY_TERMS: dict[str, Any] = {
    "lease_seconds": 60,
    "unbond_seconds": 100,
    "dispute_seconds": 50,
    "change_seconds": 200,
    "epoch_budget": 1000,
}


def make_world(kind: str, **changes: Any) -> World:
    """A run with short windows and a budget of 1,000 wei per epoch, in block 2."""
    return WORLDS[kind](make_terms(**{**MONEY_TERMS, **changes}))


async def commit(world: World, *, key: bytes = TRAINER, term: int = 1, final: bool = False) -> None:
    """Commit the next checkpoint of the chain of manifests digest(0), digest(1), .."""
    step = len(await world.ledger().commits())
    parent = digest(step - 1) if step else ZERO_DIGEST
    await world.ledger(key).commit_checkpoint(term=term, step=step, manifest=digest(step), parent=parent, final=final)


async def finalise(world: World, leaves: Sequence[Leaf], *, amount: int | None = None) -> None:
    """Close an epoch with these leaves. `amount` is the sum promised, by default that of the leaves."""
    for _ in range(2):
        await commit(world)
    ledger = world.ledger(VALIDATORS[0])
    roots, closing = await ledger.final_roots(), await ledger.closing_block()
    assert closing is not None
    proposal = Proposal(
        run=RUN,
        epoch=len(roots),
        round=0,
        closing_block=closing.number,
        parent_root=roots[-1].root if roots else ZERO_DIGEST,
        root=merkle_root(leaves),
        total=sum(leaf.units for leaf in leaves),
        blob=digest("blob"),
        amount=sum(leaf.amount for leaf in leaves) if amount is None else amount,
    )
    attestations = [await world.ledger(key).attest(proposal) for key in VALIDATORS[:2]]
    await world.ledger(STRANGER).finalise(proposal, attestations)


async def claim(world: World, leaves: Sequence[Leaf], leaf: Leaf, *, epoch: int | None = None) -> None:
    """Claim by the newest root, or by that of an epoch; sent by somebody else."""
    newest = len(await world.ledger().final_roots()) - 1
    proof = merkle_proof(leaves, leaf) if leaf in leaves else MerkleProof(0, 1, ())
    await world.ledger(STRANGER).claim(newest if epoch is None else epoch, leaf, proof)


async def fund(world: World, amount: int) -> None:
    """Fund the run from the owner's account."""
    await world.ledger(OWNER).fund(amount)
