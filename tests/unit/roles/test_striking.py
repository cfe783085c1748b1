"""Strikes: a quorum ejects, with proof, a node that is repeatedly at fault; the strike is
lifted when the proof is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST, decode, digest, sha256
from dht.identity import NodeKey
from dht.memory import MemoryDirectory
from dht.records import unix_ms
from ledger.errors import LedgerRejected
from ledger.memory import MemoryLedger
from ledger.records import HeldStrike, Strike
from ledger.wallet import address_of, sign_registration
from roles.evidence import check_evidence, pack_evidence
from roles.messages import StrikeRow, strikes_key
from roles.ports import Clock
from roles.rules import Reason, Reject
from roles.spec import CheckSpec, EpochSpec, RewardSpec
from roles.tally import Contribution, TallyItem, pack_item
from roles.tally.context import Bench
from roles.validator.records import JudgedRows
from roles.verification import CHECKS, Case, Check
from tests.builders import (
    VALIDATOR_OPERATORS,
    VALIDATORS,
    WALLETS,
    WORKERS,
    World,
    make_registration,
    make_spec,
    make_submission,
    make_verdict,
    manifest_of,
    node_key,
    shared_engine,
    shared_task,
    spoil,
)
from tests.unit.roles.validator_network import PATIENCE, ValidatorNetwork, running

CHEAT = WORKERS[1]


NEW = node_key(24)
STAKE = 1000


@asynccontextmanager
async def striking(folder: Path, *, stake: int = 0, **changes: Any) -> AsyncIterator[ValidatorNetwork]:
    """A network in which two faults eject. `stake` is what it requires, and what the cheat's wallet has staked."""
    spec = make_spec(
        checks=CheckSpec(strikes_to_eject=2),
        epoch=EpochSpec(checkpoints=3, round_seconds=30),
        rewards=RewardSpec(min_stake=str(stake)),
    )
    async with running(folder, spec=spec, **changes) as network:
        if stake:
            await network.wallet(1).stake(CHEAT.node, address_of(WALLETS[1]), stake)
        yield network


def quick_clock(factor: int = 30) -> Clock:
    """Make validators wait for each other less long."""
    began = unix_ms()
    return lambda: began + factor * (unix_ms() - began)


async def cheat(
    network: ValidatorNetwork, key: NodeKey = CHEAT, *, index: int = 0, predecessor: str = ZERO_DIGEST
) -> str:
    """A submission with made-up rewards. Returns its digest."""
    world = World(network.spec, network.trusted, shared_engine(), shared_task())
    made = await network.make(key, index=index, predecessor=predecessor)
    made = spoil(world, made, lambda row: replace(row, reward=0.5))
    await network.hand_in(made, key)
    return made.digest


async def cheat_twice(network: ValidatorNetwork, key: NodeKey = CHEAT) -> None:
    """Two of them."""
    await cheat(network, key, index=1, predecessor=await cheat(network, key))


async def admitted(network: ValidatorNetwork, count: int) -> None:
    """Wait until every validator has admitted that many submissions."""
    validators = list(network.validators.values())
    await network.until(lambda: all(len(each.trusted.submissions) == count for each in validators))


async def held(network: ValidatorNetwork, outcome: str = "open") -> HeldStrike:
    """The first strike, once the ledger shows it in this state."""
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
        terms: dict[str, Any] = {"bench": bench, "needed": 2, "after_step": -1, "keys": [CHEAT.node]}
        assert len(check_evidence(proof, node=CHEAT.node, number=0, **terms)) == 2
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


async def test_turn__soft_refusals_and_one_fault_strike_nobody__top_25(tmp_path: Path) -> None:
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
    """The cheat's wallet disputes the strike."""
    await network.wallet(1).dispute(CHEAT.node, "ab" * 32)


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
    """The validators' checker was broken. Once it is repaired, they retract what it made them say."""
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


async def test_turn__disputed__a_fault_of_this_node_says_nothing_and_stops_nothing(tmp_path: Path) -> None:
    """The evidence is examined again, and the checker fails at it."""
    looked = list[str]()

    def breaks(case: Case) -> None:
        if looked and case.submission.node == CHEAT.node:
            looked.append(case.submission.blob)
            raise RuntimeError("out of memory")

    async with striking(tmp_path, checks=(Check("breaks", breaks), *CHECKS)) as network:
        await cheat_twice(network)
        await held(network)
        looked.append("from now on")
        await dispute(network)
        await network.until(lambda: len(looked) > 3)
        assert not any(run.done() for run in network.runs)
        assert not any(validator.striking.audited for validator in network.validators.values())


async def strike_on(network: ValidatorNetwork, *items: TallyItem) -> None:
    """On the ledger by a quorum's word: a strike based on this evidence."""
    blob = pack_evidence(run=network.spec.run_id, node=CHEAT.node, number=0, faults=items)
    network.relays.blobs[sha256(blob)] = blob
    wallet = address_of(WALLETS[1])
    strike = Strike(network.spec.run_id, CHEAT.node, wallet, 0, int(Reason.WRONG_REWARD), sha256(blob))
    keys = VALIDATOR_OPERATORS[:2]
    ledgers = [MemoryLedger(network.chain, run=network.spec.run_id, operator_key=key) for key in keys]
    await network.ledger.strike(strike, [await ledger.attest_strike(strike) for ledger in ledgers])


def said_at_fault(network: ValidatorNetwork, digest: str, signers: Sequence[NodeKey], **changes: Any) -> TallyItem:
    """A submission that these validators called a fault."""
    world, admitted = World(network.spec, network.trusted), network.trusted.submissions[digest]
    verdict = make_verdict(admitted.submission, outcome="fault", **{"reason": int(Reason.WRONG_REWARD), **changes})
    return pack_item(Contribution(admitted.row, tuple(world.row(verdict, key) for key in signers)))


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"reason": 998}, id="that cannot be read"),
        pytest.param({"reason": int(Reason.REPEATED_EQUIVOCATION)}, id="that nobody can look at again"),
        pytest.param({}, id="of somebody else"),
    ],
)
async def test_turn__evidence_that_was_wrong__nothing_unproved_beside_it_saves_it(
    tmp_path: Path, beside: dict[str, Any]
) -> None:
    """Whoever compiles it may include what no quorum has said."""
    async with striking(tmp_path, validators=()) as network:
        made = [await network.make(CHEAT)]
        made.append(await network.make(CHEAT, index=1, predecessor=made[0].digest))
        for each in made:
            await network.hand_in(each, CHEAT)
        other = await cheat(network, WORKERS[0])
        more = await cheat(network, WORKERS[0], index=1, predecessor=other)
        await network.until(lambda: len(network.trusted.submissions) == 4)
        proved = [said_at_fault(network, each.digest, VALIDATORS[:2]) for each in made]
        loose = [said_at_fault(network, digest, [WORKERS[0]], **beside) for digest in (other, more)]
        await strike_on(network, *proved, *loose)
        await held(network)
        await dispute(network)
        for number in (0, 1):
            network.start(number, clock=quick_clock())
        await network.until(lambda: not network.trusted.is_ejected(CHEAT.node))


async def make_false_case(network: ValidatorNetwork, number: int) -> None:
    """A validator that protects the cheat: it makes the case itself, on evidence that nobody will ever see."""
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
    async with striking(tmp_path, validators=(0, 1), clock=quick_clock(60)) as network:
        await make_false_case(network, 2)
        await cheat_twice(network)
        assert (await held(network)).strike.evidence in network.relays.blobs
        assert network.trusted.is_ejected(CHEAT.node)


async def slashed(network: ValidatorNetwork, count: int = 1) -> int:
    """What the cheat's strikes took, once there are that many, none is disputed and their time has passed."""
    async with asyncio.timeout(PATIENCE):
        while len(await network.ledger.strikes()) < count:  # noqa: ASYNC110 - the ledger has no events
            await asyncio.sleep(0.05)
    network.chain.mine(1, seconds=90_000)
    for each in await network.ledger.strikes():
        await network.ledger.settle(each.strike.node)
    return sum(each.slashed for each in await network.ledger.strikes())


async def test_turn__key_replaced_before_the_verdicts__node_and_stake_are_struck(tmp_path: Path) -> None:
    async with striking(tmp_path, stake=STAKE, clock=quick_clock()) as network:
        await cheat_twice(network)
        await admitted(network, 2)
        await network.replace_key(CHEAT, NEW)
        strike = (await held(network)).strike
        assert (strike.node, strike.wallet, strike.reason) == (CHEAT.node, address_of(WALLETS[1]), Reason.WRONG_REWARD)
        assert network.trusted.is_ejected(NEW.node)
        assert not network.trusted.is_member(NEW.node)
        assert await slashed(network) == STAKE
        assert not network.accepted()


async def test_turn__one_fault_with_each_key__they_add_up(tmp_path: Path) -> None:
    async with striking(tmp_path, clock=quick_clock()) as network:
        first = await cheat(network)
        await admitted(network, 1)
        await network.replace_key(CHEAT, NEW)
        await cheat(network, NEW, index=1, predecessor=first)
        await held(network)
        assert network.trusted.is_ejected(NEW.node)


async def test_turn__stake_under_two_keys__both_are_struck(tmp_path: Path) -> None:
    async with striking(tmp_path, stake=STAKE, clock=quick_clock()) as network:
        await network.replace_key(CHEAT, NEW)
        await network.wallet(1).stake(NEW.node, address_of(WALLETS[1]), 2 * STAKE)
        await cheat_twice(network, NEW)
        assert await slashed(network, 2) == 3 * STAKE
        assert {each.strike.node for each in await network.ledger.strikes()} == {CHEAT.node, NEW.node}


async def test_turn__unlinked_before_the_verdicts__the_wallet_that_stood_behind_it_is_slashed(tmp_path: Path) -> None:
    async with striking(tmp_path, stake=STAKE, clock=quick_clock()) as network:
        await cheat_twice(network)
        await admitted(network, 2)
        unlinked = sign_registration(
            network.ledger.domain, run=network.spec.run_id, node=CHEAT.node, nonce=2, sign_node=CHEAT.sign
        )
        await network.ledger.register(unlinked)
        await network.wallet(1).unbond(CHEAT.node)
        strike = (await held(network)).strike
        assert strike.wallet == address_of(WALLETS[1])
        network.chain.mine(1, seconds=90_000)
        with pytest.raises(LedgerRejected, match="stake is frozen"):
            await network.wallet(1).withdraw(CHEAT.node)
        assert await slashed(network) == STAKE


def note_fault(network: ValidatorNetwork, digest: str, number: int, *others: int) -> None:
    """On a validator's disk: a fault found by it and by these."""
    world, row = World(network.spec, network.trusted), network.trusted.submissions[digest].row
    submission = network.trusted.submissions[digest].submission
    verdict = make_verdict(submission, outcome="fault", reason=int(Reason.WRONG_REWARD))
    folder = network.state / str(number)
    folder.mkdir(exist_ok=True)
    records = JudgedRows(folder / "judged.sqlite")
    records.keep_fault(submission, row, [world.row(verdict, VALIDATORS[signer]) for signer in (number, *others)])
    records.close()


async def test_turn__faults_of_before_a_validator_left__cover_for_nobody(tmp_path: Path) -> None:
    """Each has proved the first fault together with the one that leaves, so no case of
    theirs that includes it is valid."""
    async with striking(tmp_path, validators=()) as network:
        first = await cheat(network)
        await network.until(lambda: first in network.trusted.submissions)
        await network.remove_validator(2)
        for number in (0, 1):
            note_fault(network, first, number, 2)
            network.start(number, clock=quick_clock())
        second = await cheat(network, index=1, predecessor=first)
        await cheat(network, index=2, predecessor=second)
        assert (await held(network)).strike.node == CHEAT.node
        assert network.trusted.is_ejected(CHEAT.node)


async def test_turn__a_case_that_holds_no_more_once_a_validator_left__is_not_sent(tmp_path: Path) -> None:
    """Both that stay have signed it and are a quorum, but one of those that found its faults has left."""
    now = [unix_ms()]
    async with striking(tmp_path, validators=()) as network:
        proposer, other = sorted((0, 1), key=lambda each: digest("strike-turn/1", CHEAT.node, 0, VALIDATORS[each].node))
        first = await cheat(network)
        second = await cheat(network, index=1, predecessor=first)
        await network.until(lambda: second in network.trusted.submissions)
        for each in (first, second):
            note_fault(network, each, proposer, 2)
        ours, theirs = (network.build(number, clock=lambda: now[0]) for number in (proposer, other))
        built = (ours, ours, theirs)
        for validator, observer in built:
            await observer.look()
            await validator.striking.turn()
            now[0] += 60_000
        await network.remove_validator(2)
        for validator, observer in built:
            await observer.look()
            await validator.striking.turn()
            now[0] += 60_000
        assert not await network.ledger.strikes()


async def proposed(network: ValidatorNetwork, wallet: bytes) -> None:
    """Wait until the first validator's case names this wallet."""

    async def named() -> list[str]:
        found = await MemoryDirectory(network.directory).read([strikes_key(network.spec.run_id)])
        return [decode(StrikeRow, row.payload).wallet for rows in found.values() for row in rows]

    async with asyncio.timeout(PATIENCE):
        while await named() != [address_of(wallet)]:  # noqa: ASYNC110 - it looks now and then
            await asyncio.sleep(0.05)


async def test_turn__more_staked_for_another_wallet_once_the_case_is_made__it_is_made_anew(tmp_path: Path) -> None:
    """Otherwise the stake that others find largest would never be a case's, however often the cheat adds a little."""
    async with striking(tmp_path, stake=STAKE, validators=()) as network:
        first = await cheat(network)
        second = await cheat(network, index=1, predecessor=first)
        await network.until(lambda: second in network.trusted.submissions)
        for digest in (first, second):
            note_fault(network, digest, 0, 1)
        network.start(0, clock=quick_clock())
        await proposed(network, WALLETS[1])
        await network.ledger.register(make_registration(network.ledger, network.spec, CHEAT, WALLETS[2], nonce=2))
        await network.wallet(2).stake(CHEAT.node, address_of(WALLETS[2]), 2 * STAKE)
        await proposed(network, WALLETS[2])
        assert not await network.ledger.strikes()  # one validator's word is none
