"""A run on the contract and one on the model, behind the interface nodes use: the same test is put to both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ledger import abi
from ledger.base import BaseLedger
from ledger.client import LedgerClient
from ledger.devnet import DevnetRpc
from ledger.evm import CHAIN_ID
from ledger.memory import MemoryChain, MemoryLedger
from ledger.merkle import MerkleProof, merkle_proof, merkle_root
from ledger.records import ZERO_DIGEST, Leaf, MoreTerms, Proposal, RunTerms
from ledger.rpc import Request, RpcError
from ledger.sender import Sender
from ledger.wallet import Domain
from tests.contract.harness import OWNER, RUN, START, STRANGER, TRAINER, VALIDATORS, Registry, digest, make_terms


class World(Protocol):
    """A run that was just created."""

    @property
    def domain(self) -> Domain: ...

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        """The run as whoever holds the key sees it now."""

    def skip(self, seconds: int) -> None:
        """An empty block, so much after the newest."""

    def coins(self, address: str) -> int:
        """Wei an address has more than at the start, gas apart."""


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

    async def close(self) -> None:
        """Nothing is held."""


class ContractWorld:
    """The compiled contract on an EVM, through the client every node uses."""

    def __init__(self, terms: RunTerms, registry: Registry | None = None) -> None:
        self.registry = registry or Registry()
        self.registry.create_run(terms)
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
        more: MoreTerms = {name: getattr(terms, name) for name in MoreTerms.__annotations__}  # type: ignore[assignment]
        self._chain.create_run(
            run=RUN,
            owner=terms.owner,
            validators=terms.validators,
            trainers=terms.trainers,
            quorum=terms.quorum,
            epoch_checkpoints=terms.epoch_checkpoints,
            epoch_max_seconds=terms.epoch_max_seconds,
            round_seconds=terms.round_seconds,
            **more,
        )

    @property
    def domain(self) -> Domain:
        return self._chain.domain

    def ledger(self, key: bytes | None = None) -> BaseLedger:
        return MemoryLedger(self._chain, run=RUN, operator_key=key)

    def skip(self, seconds: int) -> None:
        self._chain.mine(seconds=seconds)

    def coins(self, address: str) -> int:
        return self._chain.model.received[address]


WORLDS: dict[str, Callable[[RunTerms], World]] = {"contract": ContractWorld, "model": ModelWorld}
MONEY_TERMS: dict[str, Any] = {
    "lease_seconds": 60,
    "unbond_seconds": 100,
    "dispute_seconds": 50,
    "change_seconds": 200,
    "epoch_budget": 1000,
}


def make_world(kind: str, **changes: Any) -> World:
    """A run with short windows and a budget of 1,000 wei an epoch, in block 2."""
    return WORLDS[kind](make_terms(**{**MONEY_TERMS, **changes}))


async def commit(world: World, *, key: bytes = TRAINER, term: int = 1, final: bool = False) -> None:
    """Commit the next checkpoint of the chain of manifests digest(0), digest(1), .."""
    step = len(await world.ledger().commits())
    parent = digest(step - 1) if step else ZERO_DIGEST
    await world.ledger(key).commit_checkpoint(term=term, step=step, manifest=digest(step), parent=parent, final=final)


async def finalise(world: World, leaves: Sequence[Leaf], *, amount: int | None = None) -> None:
    """Close an epoch with these leaves; `amount` promised is their sum unless told otherwise."""
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
    """Claim by the newest root, or that of an epoch, sent by somebody else."""
    newest = len(await world.ledger().final_roots()) - 1
    proof = merkle_proof(leaves, leaf) if leaf in leaves else MerkleProof(0, 1, ())
    await world.ledger(STRANGER).claim(newest if epoch is None else epoch, leaf, proof)


async def fund(world: World, amount: int) -> None:
    """Funds of the owner's."""
    await world.ledger(OWNER).fund(amount)
