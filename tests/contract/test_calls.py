"""Every call as a node makes it, on both the compiled contract and the model: its effect, and what readers see."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.errors import LedgerRejected
from ledger.merkle import MerkleProof
from ledger.records import Leaf, Lease
from ledger.wallet import address_of
from roles.eligibility import bonded_stakes, ejected_nodes
from tests.contract.harness import (
    ADDRESSES,
    KEYS,
    NODES,
    OWNER,
    STRANGER,
    TRAINER,
    VALIDATORS,
    WALLET,
    digest,
    make_operator,
    make_proposal,
    make_registration,
    make_rotation,
    make_strike,
)
from tests.contract.worlds import WORLDS, World, claim, commit, finalise, fund, make_world

SECOND, THIRD = KEYS[4], KEYS[6]
TRAINERS = tuple(make_operator(index) for index in (0, 4, 6))
PAYEE = ADDRESSES[7]
NODE = NODES[5]


@pytest.fixture(params=sorted(WORLDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(kind: str) -> World:
    """A run with one trainer."""
    return make_world(kind)


@pytest.fixture
def three(kind: str) -> World:
    """A run with three trainers, each 60 s of lease."""
    return make_world(kind, trainers=TRAINERS)


async def refused(call: Any, reason: str) -> None:
    """Assert that the call is refused for this reason, in either world."""
    with pytest.raises(LedgerRejected) as refusal:
        await call
    assert refusal.value.reason == reason


def leaf_of(amount: int, *, node: int = 5, wallet: str | None = PAYEE, **more: Any) -> Leaf:
    return Leaf(NODES[node], wallet, units=10 * amount, amount=amount, **more)


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_lease__begins_with_checkpoint_0(three: World) -> None:
    three.skip(1000)
    assert await three.ledger().lease() == Lease(1, NODES[0], 0, 0)
    await refused(three.ledger(SECOND).report_lapse(), "lease has not begun")
    await refused(three.ledger(TRAINER).renew(), "lease has not begun")
    await commit(three)
    head = await three.ledger().head()
    assert await three.ledger().lease() == Lease(1, NODES[0], head.timestamp + 60, 0)
    assert (await three.ledger().lease(until=head.number - 1)).until == 0


async def test_renew__extends_the_lease(three: World) -> None:
    await commit(three)
    three.skip(40)
    await three.ledger(TRAINER).renew()
    assert (await three.ledger().lease()).until == (await three.ledger().head()).timestamp + 60
    await refused(three.ledger(SECOND).renew(), "not the leading trainer")


async def test_take_over__next_in_line_after_the_lapse_was_seen(three: World) -> None:
    await commit(three)
    await refused(three.ledger(SECOND).report_lapse(), "lease")
    await refused(three.ledger(SECOND).take_over(), "lapse")
    three.skip(61)
    await three.ledger(SECOND).report_lapse()
    await three.ledger(THIRD).report_lapse()  # said already: no harm
    await refused(three.ledger(SECOND).take_over(), "lapse")
    three.skip(1)
    three.skip(1)
    await three.ledger(SECOND).take_over()
    lease = await three.ledger().lease()
    assert lease == Lease(2, NODES[4], (await three.ledger().head()).timestamp + 60, 0)


async def test_take_over__fences_the_old_leader(three: World) -> None:
    await commit(three)
    await depose(three)
    await refused(commit(three), "not the leading trainer")
    await refused(three.ledger(TRAINER).renew(), "not the leading trainer")
    await refused(commit(three, key=SECOND, term=1), "term")
    await commit(three, key=SECOND, term=2)
    assert [(each.term, each.step) for each in await three.ledger().commits()] == [(1, 0), (2, 1)]


async def test_take_over__the_third_waits_a_lease_longer(three: World) -> None:
    await commit(three)
    three.skip(61)
    await three.ledger(THIRD).report_lapse()
    for _ in range(2):
        three.skip(1)
    await refused(three.ledger(THIRD).take_over(), "lease")
    three.skip(60)
    await three.ledger(THIRD).take_over()
    assert (await three.ledger().lease()).leader == NODES[6]


async def test_take_over__goes_round(three: World) -> None:
    await commit(three)
    for term, key in ((2, SECOND), (3, THIRD), (4, TRAINER)):
        await depose(three, key)
        assert (await three.ledger().lease()).term == term
        await commit(three, key=key, term=term)


@pytest.mark.parametrize("act", ["commit", "renew"])
async def test_report_lapse__a_leader_that_acts_takes_it_back(three: World, act: str) -> None:
    await commit(three)
    three.skip(61)
    await three.ledger(SECOND).report_lapse()
    await (commit(three) if act == "commit" else three.ledger(TRAINER).renew())
    assert (await three.ledger().lease()).lapse_block == 0
    for _ in range(4):
        three.skip(1)
    await refused(three.ledger(SECOND).take_over(), "lapse")


async def test_report_lapse__a_chain_that_stood_still_deposes_nobody(three: World) -> None:
    await commit(three)
    three.skip(100_000)
    await three.ledger(SECOND).report_lapse()
    await refused(three.ledger(SECOND).take_over(), "lapse")
    await three.ledger(TRAINER).renew()
    assert (await three.ledger().lease()).leader == NODES[0]


async def test_lease__ends_with_the_final_checkpoint(three: World) -> None:
    await commit(three, final=True)
    three.skip(61)
    await refused(three.ledger(SECOND).report_lapse(), "run has ended")
    await refused(three.ledger(TRAINER).renew(), "run has ended")


async def depose(world: World, key: bytes = SECOND) -> None:
    """Let the lease lapse, and let a trainer take over."""
    world.skip(61)
    await world.ledger(key).report_lapse()
    for _ in range(2):
        world.skip(1)
    await world.ledger(key).take_over()


# -- rewards ----------------------------------------------------------------------------------------------------------


async def test_claim__pays_the_wallet_once(world: World) -> None:
    leaves = [leaf_of(300), leaf_of(50, node=6, wallet=ADDRESSES[6])]
    await fund(world, 500)
    await finalise(world, leaves)
    await claim(world, leaves, leaves[0])
    await claim(world, leaves, leaves[0])  # paid already: no harm
    assert (world.coins(PAYEE), world.coins(address_of(OWNER))) == (300, -500)
    assert await world.ledger().claimed(leaves[0]) == 300
    assert await world.ledger().claimed(leaves[1]) == 0


async def test_claim__one_covers_all_epochs_before(world: World) -> None:
    await fund(world, 500)
    old, new = [leaf_of(100)], [leaf_of(250)]
    await finalise(world, old)
    await finalise(world, new)
    await claim(world, old, old[0], epoch=0)
    await claim(world, new, new[0])
    await claim(world, old, old[0], epoch=0)
    assert world.coins(PAYEE) == 250


async def test_claim__roles_are_paid_apart(world: World) -> None:
    leaves = [leaf_of(10), leaf_of(20, role="validator"), leaf_of(30, role="relay"), leaf_of(40, role="trainer")]
    await fund(world, 100)
    await finalise(world, leaves)
    for leaf in leaves:
        await claim(world, leaves, leaf)
    assert world.coins(PAYEE) == 100
    assert sorted((await world.ledger().paid()).values()) == [10, 20, 30, 40]


async def test_claim__refuses(world: World) -> None:
    leaves = [leaf_of(100), leaf_of(70, node=6, wallet=None), leaf_of(0, node=4)]
    await fund(world, 1000)
    await finalise(world, leaves)
    await refused(claim(world, leaves, leaves[0], epoch=1), "epoch")
    await refused(claim(world, leaves, leaves[1]), "leaf has no wallet")
    await refused(claim(world, leaves, leaves[2]), "nothing to pay")
    await refused(claim(world, leaves, leaf_of(101)), "proof")
    await refused(claim(world, [leaf_of(100)], leaf_of(100)), "proof")
    assert world.coins(PAYEE) == 0


async def test_claim__never_more_than_the_root_promises__chain_23(world: World) -> None:  # CHAIN-23
    leaves = [leaf_of(60), leaf_of(60, node=6)]
    await fund(world, 1000)
    await finalise(world, leaves, amount=100)  # a quorum signed nonsense
    await claim(world, leaves, leaves[0])
    await refused(claim(world, leaves, leaves[1]), "root is overdrawn")
    assert world.coins(PAYEE) == 60


async def test_finalise__refuses_more_than_the_budget_or_the_funds(world: World) -> None:
    await fund(world, 1200)
    await refused(finalise(world, [leaf_of(1001)]), "amount")
    await finalise(world, [leaf_of(1000)])
    await refused(finalise(world, [leaf_of(1201)]), "funds")
    await refused(finalise(world, [leaf_of(999)]), "units")
    await finalise(world, [leaf_of(1200)])
    assert [root.amount for root in await world.ledger().final_roots()] == [1000, 1200]


async def test_funds_at__as_of_a_block(world: World) -> None:
    await fund(world, 5)
    before = (await world.ledger().head()).number
    await fund(world, 7)
    assert (await world.ledger().funds_at(before), await world.ledger().funds_at()) == (5, 12)
    assert await world.ledger().funds_at(before - 1) == 0


async def test_reclaim__what_no_root_promised_once_the_run_is_over(world: World) -> None:
    leaves = [leaf_of(300)]
    await fund(world, 1000)
    await finalise(world, leaves)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "run is not over")
    await commit(world, final=True)
    world.skip(98)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "run is not over")
    await refused(world.ledger(STRANGER).reclaim(ADDRESSES[6]), "not the owner")
    world.skip(2)
    await world.ledger(OWNER).reclaim(ADDRESSES[6])
    assert (world.coins(ADDRESSES[6]), await world.ledger().funds_at()) == (700, 300)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "nothing to pay")
    await claim(world, leaves, leaves[0])
    assert world.coins(PAYEE) == 300


async def test_reclaim__of_a_run_left_alone_for_a_month(world: World) -> None:
    await fund(world, 1000)
    await commit(world)
    world.skip(30 * 86400)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "run is not over")
    world.skip(100)
    await world.ledger(OWNER).reclaim(ADDRESSES[6])
    assert world.coins(ADDRESSES[6]) == 1000


async def test_reclaim__waits_anew_after_a_tally_or_a_pause(world: World) -> None:
    await fund(world, 1000)
    for _ in range(2):
        await commit(world)
    await commit(world, final=True)
    world.skip(90)
    await finalise_after_the_end(world)
    world.skip(98)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "run is not over")
    await world.ledger(OWNER).pause(True)
    world.skip(200)
    await world.ledger(OWNER).pause(False)
    world.skip(98)
    await refused(world.ledger(OWNER).reclaim(ADDRESSES[6]), "run is not over")
    world.skip(2)
    await world.ledger(OWNER).reclaim(ADDRESSES[6])
    assert world.coins(ADDRESSES[6]) == 900


async def finalise_after_the_end(world: World) -> None:
    """A tally of 100 that closes with the final checkpoint."""
    ledger, closing = world.ledger(VALIDATORS[0]), await world.ledger().closing_block()
    assert closing is not None
    proposal = make_proposal(closing_block=closing.number, amount=100)
    attestations = [await world.ledger(key).attest(proposal) for key in VALIDATORS[:2]]
    await ledger.finalise(proposal, attestations)


# -- stakes and strikes -----------------------------------------------------------------------------------------------


async def test_stake__by_anyone_and_back_to_the_wallet_only(world: World) -> None:
    await world.ledger(STRANGER).stake(NODE, PAYEE, 40)
    await world.ledger(STRANGER).stake(NODE, PAYEE, 2)
    await refused(world.ledger(STRANGER).unbond(NODE), "no stake")
    await refused(world.ledger(STRANGER).withdraw(NODE), "no stake")
    await refused(world.ledger(WALLET).withdraw(NODE), "bonded")
    await world.ledger(WALLET).unbond(NODE)
    head = await world.ledger().head()
    (stake,) = (await world.ledger().stakes()).values()
    assert (stake.node, stake.wallet, stake.amount, stake.unbond_at) == (NODE, PAYEE, 42, head.timestamp + 100)
    world.skip(98)
    await refused(world.ledger(WALLET).withdraw(NODE), "bonded")
    world.skip(1)
    await world.ledger(WALLET).withdraw(NODE)
    assert (world.coins(PAYEE), world.coins(address_of(STRANGER))) == (42, -42)
    assert await world.ledger().stakes() == {}
    assert (await world.ledger().stakes(head.number))[(NODE, PAYEE)] == stake


async def test_stake__while_unbonding_only_by_the_wallet_which_bonds_all_again(world: World) -> None:
    await world.ledger(STRANGER).stake(NODE, PAYEE, 40)
    await world.ledger(WALLET).unbond(NODE)
    await refused(world.ledger(STRANGER).stake(NODE, PAYEE, 1), "unbonding")
    await world.ledger(WALLET).stake(NODE, PAYEE, 1)
    (stake,) = (await world.ledger().stakes()).values()
    assert (stake.amount, stake.unbond_at) == (41, 0)


async def test_stake__below_the_minimum__val_14(kind: str) -> None:
    world = make_world(kind, min_stake=100)
    await refused(world.ledger(STRANGER).stake(NODE, PAYEE, 99), "below the minimum stake")
    await world.ledger(STRANGER).stake(NODE, PAYEE, 100)
    await world.ledger(STRANGER).stake(NODE, PAYEE, 1)


async def strike(world: World, number: int = 0, **changes: Any) -> None:
    made = make_strike(number=number, **changes)
    attestations = [await world.ledger(key).attest_strike(made) for key in VALIDATORS[1:]]
    assert all([await world.ledger().check_strike_attestation(made, each) for each in attestations])
    await world.ledger(STRANGER).strike(made, attestations)


async def lift(world: World, number: int = 0) -> None:
    attestations = [await world.ledger(key).attest_lift(NODE, number) for key in VALIDATORS[:2]]
    assert all([await world.ledger().check_lift_attestation(NODE, number, each) for each in attestations])
    await world.ledger(STRANGER).lift(NODE, number, attestations)


async def test_strike__settled_slashes_into_the_funds__chain_22(world: World) -> None:  # CHAIN-22
    await world.ledger(STRANGER).stake(NODE, PAYEE, 40)
    await world.ledger(STRANGER).stake(NODE, ADDRESSES[6], 5)
    await strike(world)
    await strike(world)  # stands already: no harm
    (held,) = await world.ledger().strikes()
    head = await world.ledger().head()
    assert (held.strike, held.outcome, held.until) == (make_strike(), "open", head.timestamp + 50)
    assert held.attesters == tuple(address_of(key) for key in VALIDATORS[1:])
    await refused(world.ledger(STRANGER).settle(NODE), "window is open")
    world.skip(50)
    await world.ledger(STRANGER).settle(NODE)
    await world.ledger(STRANGER).settle(NODE)  # settled already: no harm
    (held,) = await world.ledger().strikes()
    assert (held.outcome, held.slashed, await world.ledger().funds_at()) == ("settled", 40, 40)
    assert list(await world.ledger().stakes()) == [(NODE, ADDRESSES[6])]  # another wallet's is not touched
    await refused(world.ledger(STRANGER).stake(NODE, ADDRESSES[6], 5), "node is struck")
    await finalise(world, [leaf_of(40)])
    assert world.coins(address_of(STRANGER)) == -45  # who struck gained nothing


async def test_strike__freezes_what_is_unbonding(world: World) -> None:
    await world.ledger(STRANGER).stake(NODE, PAYEE, 40)
    await world.ledger(WALLET).unbond(NODE)
    world.skip(90)
    await strike(world)
    world.skip(49)
    await refused(world.ledger(WALLET).withdraw(NODE), "stake is frozen")
    world.skip(2)
    await refused(world.ledger(WALLET).withdraw(NODE), "stake is frozen")
    await world.ledger(STRANGER).settle(NODE)
    await refused(world.ledger(WALLET).withdraw(NODE), "no stake")


async def test_dispute__by_the_wallet_extends_the_window_once(world: World) -> None:
    await strike(world)
    await refused(world.ledger(STRANGER).dispute(NODE, digest("answer")), "not the wallet")
    await world.ledger(WALLET).dispute(NODE, digest("answer"))
    await refused(world.ledger(WALLET).dispute(NODE, digest("another")), "disputed before")
    (held,) = await world.ledger().strikes()
    assert held.counter_evidence == digest("answer")
    world.skip(60)
    await refused(world.ledger(STRANGER).settle(NODE), "window is open")
    world.skip(50)
    await world.ledger(STRANGER).settle(NODE)


async def test_dispute__not_after_the_window(world: World) -> None:
    await strike(world)
    world.skip(50)
    await refused(world.ledger(WALLET).dispute(NODE, digest("answer")), "window is over")


async def test_lift__gives_the_stake_back(world: World) -> None:
    await world.ledger(STRANGER).stake(NODE, PAYEE, 40)
    await world.ledger(WALLET).unbond(NODE)
    await strike(world)
    await world.ledger(WALLET).dispute(NODE, digest("answer"))
    await lift(world)
    await lift(world)  # lifted already: no harm
    (held,) = await world.ledger().strikes()
    assert (held.outcome, held.slashed) == ("lifted", 0)
    world.skip(100)
    await refused(world.ledger(STRANGER).settle(NODE), "no strike is open")
    await world.ledger(WALLET).withdraw(NODE)
    assert world.coins(PAYEE) == 40
    await world.ledger(STRANGER).stake(NODE, PAYEE, 7)  # the node may go on


async def test_strike__again_after_one_was_lifted(world: World) -> None:
    await strike(world)
    await refused(strike(world, 1), "strike is open")
    await lift(world)
    await refused(strike(world, 0, reason=8), "number")
    await strike(world, 1)
    assert await world.ledger().strike_number(NODE) == 2
    assert [each.outcome for each in await world.ledger().strikes()] == ["lifted", "open"]


# -- nodes ------------------------------------------------------------------------------------------------------------


async def test_rotate__by_the_wallet_carries_everything__key_01(world: World) -> None:  # KEY-01
    sponsor = world.ledger(STRANGER)
    await sponsor.register(make_registration(world.domain))
    first = (await world.ledger().head()).number
    await sponsor.stake(NODE, PAYEE, 40)
    await sponsor.rotate(make_rotation(world.domain))
    await sponsor.rotate(make_rotation(world.domain))  # done already: no harm
    registrations = await world.ledger().registrations()
    assert list(registrations) == [NODES[6]]
    held = registrations[NODES[6]]
    assert (held.wallet, held.first_block, held.previous) == (PAYEE, first, (NODE,))
    assert NODE in await world.ledger().registrations(until=first)
    assert bonded_stakes(await world.ledger().stakes(), registrations) == {NODES[6]: 40}
    await strike(world)
    assert NODES[6] in ejected_nodes(await world.ledger().strikes(), registrations)


async def test_rotate__by_the_old_key(world: World) -> None:
    sponsor = world.ledger(STRANGER)
    await sponsor.register(make_registration(world.domain, wallet=None, claimed=PAYEE))
    await sponsor.rotate(make_rotation(world.domain, wallet=None))
    held = (await world.ledger().registrations())[NODES[6]]
    assert (held.wallet, held.claimed, held.previous) == (None, PAYEE, (NODE,))
    await sponsor.register(make_registration(world.domain, node=6, nonce=1))
    held = (await world.ledger().registrations())[NODES[6]]
    assert (held.wallet, held.previous) == (PAYEE, (NODE,))


async def test_rotate__refuses_without_paying(world: World) -> None:
    sponsor = world.ledger(STRANGER)
    await refused(sponsor.rotate(make_rotation(world.domain)), "rotation")
    await sponsor.register(make_registration(world.domain))
    await refused(sponsor.rotate(make_rotation(world.domain, wallet=KEYS[3])), "rotation")
    await sponsor.register(make_registration(world.domain, node=6))
    await refused(sponsor.rotate(make_rotation(world.domain)), "rotation")
    await sponsor.rotate(make_rotation(world.domain, new=7))
    # What the old key signs after it was given up no longer counts.
    await refused(sponsor.rotate(make_rotation(world.domain, new=4, wallet=None)), "rotation")
    assert set(await world.ledger().registrations()) == {NODES[6], NODES[7]}


# -- the owner --------------------------------------------------------------------------------------------------------


async def test_validators__change_and_the_old_ones_no_longer_count__chain_18(world: World) -> None:  # CHAIN-18
    changed = tuple(make_operator(index) for index in (4, 5, 6))
    await refused(world.ledger(STRANGER).propose_validators(changed, 2), "not the owner")
    await world.ledger(OWNER).propose_validators(changed, 2)
    waiting = await world.ledger().waiting_validators()
    assert waiting is not None
    assert (waiting.validators, waiting.apply_at) == (changed, (await world.ledger().head()).timestamp + 200)
    await refused(world.ledger(STRANGER).apply_validators(), "change must wait")
    before = (await world.ledger().head()).number
    world.skip(200)
    await world.ledger(STRANGER).apply_validators()
    assert (await world.ledger().validators_at()).validators == changed
    assert (await world.ledger().validators_at(before)).number == 0
    assert await world.ledger().waiting_validators() is None
    assert (await world.ledger().terms()).validators != changed  # terms are those of the creation
    await refused(finalise(world, []), "not a validator")
    await refused(strike(world), "not a validator")


async def test_propose_validators__again_replaces_what_waits(world: World) -> None:
    first, second = [tuple(make_operator(index) for index in some) for some in ((4,), (5, 6, 4))]
    await world.ledger(OWNER).propose_validators(first, 1)
    await world.ledger(OWNER).propose_validators(second, 2)
    world.skip(200)
    await world.ledger(STRANGER).apply_validators()
    held = await world.ledger().validators_at()
    assert (held.number, held.validators, held.quorum) == (2, second, 2)
    await refused(world.ledger(STRANGER).apply_validators(), "no change waits")


async def test_pause__stops_what_it_may(three: World) -> None:
    await commit(three)
    await three.ledger(OWNER).pause(True)
    await three.ledger(OWNER).pause(True)  # so already: no harm
    assert await three.ledger().is_paused()
    sponsor = three.ledger(STRANGER)
    three.skip(61)
    stopped = [
        commit(three),
        three.ledger(SECOND).report_lapse(),
        three.ledger(SECOND).take_over(),
        sponsor.register(make_registration(three.domain)),
        sponsor.stake(NODE, PAYEE, 5),
        strike(three),
        three.ledger(OWNER).reclaim(PAYEE),
    ]
    for call in stopped:
        await refused(call, "run is paused")
    await three.ledger(TRAINER).renew()
    await three.ledger(OWNER).pause(False)
    await commit(three)


async def test_pause__never_stops_claims_and_stakes(world: World) -> None:
    leaves = [leaf_of(100)]
    await fund(world, 100)
    await finalise(world, leaves)
    for node in (NODE, NODES[6]):
        await world.ledger(STRANGER).stake(node, PAYEE, 40)
    await strike(world)
    await world.ledger(OWNER).pause(True)
    await claim(world, leaves, leaves[0])
    await world.ledger(WALLET).dispute(NODE, digest("answer"))
    await world.ledger(WALLET).unbond(NODES[6])
    world.skip(100)
    await world.ledger(WALLET).withdraw(NODES[6])
    await world.ledger(STRANGER).settle(NODE)
    assert world.coins(PAYEE) == 140


async def test_lift__goes_on_while_paused(world: World) -> None:
    await strike(world)
    await world.ledger(OWNER).pause(True)
    await lift(world)
    await fund(world, 3)
    assert [each.outcome for each in await world.ledger().strikes()] == ["lifted"]


async def test_claim__a_proof_of_no_tree(world: World) -> None:
    await fund(world, 10)
    await finalise(world, [leaf_of(10)])
    await refused(world.ledger(STRANGER).claim(0, leaf_of(10), MerkleProof(0, 0, ())), "proof")
    await refused(world.ledger(STRANGER).claim(0, leaf_of(10), MerkleProof(1, 1, ())), "proof")
    await refused(world.ledger(STRANGER).claim(0, leaf_of(10), MerkleProof(0, 1, (digest("more"),))), "proof")
