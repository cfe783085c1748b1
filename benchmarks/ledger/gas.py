"""Gas of every registry call on an in-process EVM, and of an epoch by its number of contributions and validators."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ledger import abi
from ledger.accounts import devnet_accounts
from ledger.merkle import merkle_proof, merkle_root
from ledger.records import ZERO_DIGEST, Leaf, Operator
from ledger.wallet import address_of, node_from_public_key
from tests.contract.harness import (
    KEYS,
    NODES,
    OWNER,
    STRANGER,
    TRAINER,
    WALLET,
    Registry,
    attest,
    digest,
    make_operator,
    make_proposal,
    make_registration,
    make_rotation,
    make_strike,
    make_terms,
)
from tests.contract.worlds import MONEY_TERMS

CONTRIBUTIONS = (10, 1_000, 100_000)
VALIDATOR_COUNTS = (3, 10, 50)
PAYEE = address_of(WALLET)
Row = tuple[str, int]


def measure(quick: bool) -> dict[str, Any]:
    """Gas of each call, and of an epoch."""
    calls = list(gas_of_calls())
    counts = CONTRIBUTIONS[:2] if quick else CONTRIBUTIONS
    epochs = [gas_of_epoch(count) for count in counts]
    validators = [gas_of_quorum(count) for count in (VALIDATOR_COUNTS[:2] if quick else VALIDATOR_COUNTS)]
    _print("call", ("gas",), [(name, gas) for name, gas in calls])
    _print("contributions", ("finalise", "claim"), [(f"{n:,}", f, c) for n, f, c in epochs])
    _print("validators", ("create_run", "finalise"), [(str(n), c, f) for n, c, f in validators])
    return {
        "runtime_bytes": len(abi.unhex(abi.built()["bytecode_runtime"])),
        "calls": dict(calls),
        "epoch": {str(count): {"finalise": finalised, "claim": claimed} for count, finalised, claimed in epochs},
        "validators": {str(count): {"create_run": made, "finalise": done} for count, made, done in validators},
    }


def gas_of_calls() -> Iterable[Row]:
    """Every call once, in an order in which each succeeds. Storage slots used for the first time cost most."""
    registry = Registry()
    yield "deploy", used(registry.chain.receipts()[0])
    trainers = (make_operator(0), make_operator(4))
    yield "create_run, 3 validators", used(registry.create_run(make_terms(**MONEY_TERMS, trainers=trainers)))
    yield "register, linked", used(registry.register(make_registration(registry.domain)))
    unlinked = make_registration(registry.domain, node=6, wallet=None)
    yield "register, unlinked", used(registry.register(unlinked))
    yield "rotate", used(registry.rotate(make_rotation(registry.domain, new=7)))
    yield "fund", used(registry.do(OWNER, "fund", 1000))
    yield "commit_checkpoint, first", used(registry.commit(0))
    yield "commit_checkpoint", used(registry.commit(1))
    yield "renew", used(registry.do(TRAINER, "renew"))
    yield from _of_claims(registry)
    yield from _of_strikes(registry)
    yield from _of_leases(registry)
    yield "propose_validators, 3", used(registry.do(OWNER, "propose_validators", make_terms().validators, 2))
    registry.skip(200)
    yield "apply_validators", used(registry.do(STRANGER, "apply_validators"))
    yield "pause", used(registry.do(OWNER, "pause", True))
    registry.do(OWNER, "pause", False)
    registry.commit(3, key=KEYS[4], term=2, final=True)
    registry.skip(100)
    yield "reclaim", used(registry.do(OWNER, "reclaim", PAYEE))


def _of_claims(registry: Registry) -> Iterable[Row]:
    old = [Leaf(NODES[5], PAYEE, 100, amount=100)]
    proposal = make_proposal(closing_block=newest(registry), root=merkle_root(old), amount=100)
    yield "finalise, quorum 2", used(registry.finalise(proposal))
    yield "claim, first of a leaf", used(registry.do(STRANGER, "claim", 0, old[0], merkle_proof(old, old[0])))
    new = [replace(old[0], amount=200)]
    registry.skip(600)
    second = make_proposal(
        epoch=1, parent_root=proposal.root, closing_block=newest(registry), root=merkle_root(new), amount=200
    )
    yield "finalise, quorum 2, later", used(registry.finalise(second))
    yield "claim", used(registry.do(STRANGER, "claim", 1, new[0], merkle_proof(new, new[0])))


def _of_strikes(registry: Registry) -> Iterable[Row]:
    yield "stake", used(registry.do(OWNER, "stake", NODES[5], PAYEE, 50))
    registry.do(OWNER, "stake", NODES[6], PAYEE, 50)
    yield "unbond", used(registry.do(WALLET, "unbond", NODES[6]))
    registry.skip(100)
    yield "withdraw", used(registry.do(WALLET, "withdraw", NODES[6]))
    yield "strike, quorum 2", used(registry.strike(make_strike()))
    yield "dispute", used(registry.do(WALLET, "dispute", NODES[5], digest("answer")))
    yield "lift, quorum 2", used(registry.lift())
    registry.strike(make_strike(number=1))
    registry.skip(60)
    yield "settle", used(registry.do(STRANGER, "settle", NODES[5]))


def _of_leases(registry: Registry) -> Iterable[Row]:
    yield "report_lapse", used(registry.do(KEYS[4], "report_lapse"))
    for _ in range(2):
        registry.skip(1)
    yield "take_over", used(registry.do(KEYS[4], "take_over"))
    registry.commit(2, key=KEYS[4], term=2)


def gas_of_epoch(count: int) -> tuple[int, int, int]:
    """(contributions, gas of finalising their tally, gas of the first claim of one of them)."""
    registry = Registry()
    registry.create_run(make_terms(**{**MONEY_TERMS, "epoch_budget": count}))
    registry.do(OWNER, "fund", count)
    registry.commit(0)
    registry.commit(1)
    leaves = make_leaves(count)
    proposal = make_proposal(root=merkle_root(leaves), total=10 * count, amount=count, closing_block=newest(registry))
    finalised = registry.finalise(proposal)
    middle = leaves[count // 2]
    claimed = registry.do(STRANGER, "claim", 0, middle, merkle_proof(leaves, middle))
    return count, used(finalised), used(claimed)


def gas_of_quorum(count: int) -> tuple[int, int, int]:
    """(validators, gas of creating their run, gas of finalising with a quorum of them)."""
    keys = devnet_accounts(count, "gas")
    registry = Registry()
    validators = tuple(
        Operator(node_from_public_key(bytes([place + 1] * 32)), address_of(key), PAYEE)
        for place, key in enumerate(keys)
    )
    quorum = count // 2 + 1
    made = registry.create_run(make_terms(validators=validators, quorum=quorum))
    registry.commit(0)
    registry.commit(1)
    proposal = make_proposal(closing_block=newest(registry), parent_root=ZERO_DIGEST)
    done = registry.finalise(proposal, [attest(registry.domain, proposal, key) for key in keys[:quorum]])
    return count, used(made), used(done)


def make_leaves(count: int) -> list[Leaf]:
    """This many nodes of one wallet, each with ten units and one base unit."""
    return [
        Leaf(node_from_public_key(b"node" + place.to_bytes(28, "big")), PAYEE, 10, amount=1) for place in range(count)
    ]


def used(receipt: dict[str, Any]) -> int:
    """Gas of a transaction."""
    return int(receipt["gasUsed"], 16)


def newest(registry: Registry) -> int:
    """Number of the newest block."""
    return int(registry.chain.head["number"], 16)


def _print(first: str, others: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    sys.stdout.write(f"\n{first:28}" + "".join(f"{name:>14}" for name in others) + "\n")
    for name, *numbers in rows:
        sys.stdout.write(f"{name:28}" + "".join(f"{number:>14,}" for number in numbers) + "\n")
