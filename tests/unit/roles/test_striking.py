"""Strikes: a node at fault again and again is ejected by quorum and with proof, and taken back when the proof is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dht.encoding import ZERO_DIGEST
from dht.identity import NodeKey
from dht.records import unix_ms
from ledger.memory import MemoryLedger
from ledger.records import HeldStrike, Strike
from ledger.wallet import address_of
from roles.evidence import check_evidence
from roles.messages import StrikeRow
from roles.rules import Reason, Reject
from roles.spec import CheckSpec, EpochSpec
from roles.tally.context import Bench
from roles.verification import CHECKS, Case, Check
from tests.builders import (
    VALIDATOR_OPERATORS,
    VALIDATORS,
    WALLETS,
    WORKERS,
    World,
    make_spec,
    make_submission,
    manifest_of,
    shared_engine,
    shared_task,
    spoil,
)
from tests.unit.roles.validator_network import ValidatorNetwork, running

CHEAT = WORKERS[1]


@asynccontextmanager
async def striking(folder: Path, **changes: Any) -> AsyncIterator[ValidatorNetwork]:
    """A network in which two faults eject."""
    spec = make_spec(checks=CheckSpec(strikes_to_eject=2), epoch=EpochSpec(checkpoints=3, round_seconds=30))
    async with running(folder, spec=spec, **changes) as network:
        yield network


async def cheat_twice(network: ValidatorNetwork, key: NodeKey = CHEAT) -> None:
    """Two submissions whose rewards are made up."""
    world, before = World(network.spec, network.trusted, shared_engine(), shared_task()), ZERO_DIGEST
    for index in range(2):
        made = await network.make(key, index=index, predecessor=before)
        made = spoil(world, made, lambda row: replace(row, reward=0.5))
        before = made.digest
        await network.hand_in(made, key)


async def held(network: ValidatorNetwork, outcome: str = "open") -> HeldStrike:
    """The first strike, once the ledger shows it like this."""
    found: list[HeldStrike] = []

    def is_there() -> bool:
        view = network.trusted.view
        return view is not None and (bool(view.ejected) == (outcome != "lifted"))

    await network.until(is_there)
    found += await network.ledger.strikes()
    assert [each.outcome for each in found] == [outcome]
    return found[0]


async def test_turn__ejected_by_quorum_with_evidence_that_proves_it(tmp_path: Path) -> None:
    async with striking(tmp_path) as network:
        await cheat_twice(network)
        strike = (await held(network)).strike
        assert (strike.node, strike.number, strike.reason) == (CHEAT.node, 0, Reason.WRONG_REWARD)
        bench = Bench(network.spec.run_id, network.spec.buckets, [key.node for key in VALIDATORS], 2)
        proof = network.relays.blobs[strike.evidence]
        assert len(check_evidence(proof, node=CHEAT.node, number=0, bench=bench, needed=2, after_step=-1)) == 2
        assert network.trusted.is_ejected(CHEAT.node)
        assert not network.trusted.is_member(CHEAT.node)


async def test_turn__what_an_ejected_node_hands_in_is_ignored(tmp_path: Path) -> None:
    async with striking(tmp_path) as network:
        await cheat_twice(network)
        await held(network)
        before = World(network.spec, network.trusted).state()
        submission = make_submission(World(network.spec, network.trusted), CHEAT, policy=manifest_of(0))
        row = await network.voice(CHEAT).announce(submission.model_copy(update={"index": 3}))
        await network.until(lambda: network.eye.ignored.get(Reason.EJECTED, 0) > 0)
        assert World(network.spec, network.trusted).state() == before
        assert row.digest not in network.trusted.submissions


async def test_turn__soft_refusals_and_one_fault_strike_nobody(tmp_path: Path) -> None:
    async with striking(tmp_path) as network:
        made = await network.make(CHEAT)
        for number in range(3):  # blobs that no relay ever had, and one fault
            lost = made.submission.model_copy(update={"blob": f"{number:064x}"})
            await network.voice(CHEAT).announce(lost)
        honest = await network.make()
        await network.hand_in(honest)
        await network.until(lambda: len(network.accepted()) == 1)
        for validator in network.validators.values():
            await validator.striking.turn()
        assert not await network.ledger.strikes()


async def dispute(network: ValidatorNetwork) -> None:
    """The cheat's wallet answers."""
    wallet = MemoryLedger(network.chain, run=network.spec.run_id, operator_key=WALLETS[1])
    await wallet.dispute(CHEAT.node, "ab" * 32)


async def test_turn__disputed_in_vain__looked_at_again_and_kept(tmp_path: Path) -> None:
    async with striking(tmp_path) as network:
        await cheat_twice(network)
        await held(network)
        await dispute(network)
        (validator, *_) = network.validators.values()
        await network.until(lambda: bool(validator.striking.audited))
        assert set(validator.striking.audited.values()) == {True}
        assert (await network.ledger.strikes())[0].outcome == "open"


async def test_turn__evidence_that_was_wrong__lifted_and_the_node_is_back(tmp_path: Path) -> None:
    """The validators' checker was broken; once it is mended, they take back what it made them say."""
    broken = [True]

    def breaks(case: Case) -> None:
        if broken[0] and case.submission.node == CHEAT.node:
            raise Reject(Reason.PROOF_MISMATCH)

    async with striking(tmp_path, checks=(*CHECKS, Check("breaks", breaks))) as network:
        before = ZERO_DIGEST
        for index in range(2):
            made = await network.make(CHEAT, index=index, predecessor=before)
            before = made.digest
            await network.hand_in(made, CHEAT)
        await held(network)
        broken[0] = False
        await dispute(network)
        await held(network, "lifted")
        again = await network.make(CHEAT, index=2, predecessor=before)
        await network.hand_in(again, CHEAT)
        await network.until(lambda: again.digest in {item.digest for item in network.accepted()})
        assert len(await network.ledger.strikes()) == 1  # and nobody is struck for the same faults twice


async def make_false_case(network: ValidatorNetwork, number: int) -> None:
    """A validator that covers for the cheat: it makes the case itself, on evidence that nobody will ever see."""
    ledger = MemoryLedger(network.chain, run=network.spec.run_id, operator_key=VALIDATOR_OPERATORS[number])
    wallet = address_of(WALLETS[1])
    strike = Strike(network.spec.run_id, CHEAT.node, wallet, 0, int(Reason.WRONG_REWARD), "ab" * 32)
    attestation = await ledger.attest_strike(strike)
    row = StrikeRow(
        run=strike.run,
        act="strike",
        node=strike.node,
        wallet=wallet,
        number=strike.number,
        reason=strike.reason,
        evidence=strike.evidence,
        size=100,
        operator=attestation.operator,
        signature=attestation.signature,
    )
    await network.voice(VALIDATORS[number]).announce(row)


async def test_turn__a_case_whose_evidence_never_comes_covers_for_nobody(tmp_path: Path) -> None:
    began = unix_ms()
    async with striking(tmp_path, validators=(0, 1), clock=lambda: began + 60 * (unix_ms() - began)) as network:
        await make_false_case(network, 2)
        await cheat_twice(network)
        assert (await held(network)).strike.evidence in network.relays.blobs
        assert network.trusted.is_ejected(CHEAT.node)
