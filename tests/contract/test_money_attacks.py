"""Attacks on the contract's coins: hostile tokens, wallets that call back, and invalid proofs.

Each test names the attack and asserts the reason *and* that no coin moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ledger import abi
from ledger.calls import arguments_of, strike_arguments, tally_arguments
from ledger.changes import Struck
from ledger.errors import LedgerRejected
from ledger.merkle import MerkleProof, leaf_hash, merkle_proof, merkle_root, sorted_leaves
from ledger.records import Attestation, Leaf, RunTerms, Strike
from ledger.registrations import fold_registrations, is_signed_by_node
from ledger.signing import strike_typed_data
from ledger.wallet import NO_ADDRESS, address_of, node_from_public_key, sign_typed_data
from tests.contract.counterparts import Counterpart
from tests.contract.harness import (
    ADDRESSES,
    NODES,
    OWNER,
    RUN,
    STRANGER,
    VALIDATORS,
    WALLET,
    Registry,
    attest,
    attest_lift,
    digest,
    make_proposal,
    make_registration,
    make_rotation,
    make_strike,
    make_terms,
)
from tests.contract.worlds import MONEY_TERMS, ContractWorld

pytestmark = pytest.mark.no_cover  # the contract's lines are at stake, not ours

PAYEE = ADDRESSES[7]
NODE = NODES[5]
OTHER_RUN = digest("other run")
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def money_terms(**changes: Any) -> RunTerms:
    return make_terms(**{**MONEY_TERMS, **changes})


@pytest.fixture
def registry() -> Registry:
    """A registry without runs."""
    return Registry()


@pytest.fixture
def native(registry: Registry) -> Registry:
    """A run paid in the native coin, with 500 wei, beside another owner's run with 1,000."""
    registry.create_run(money_terms())
    registry.create_run(money_terms(run=OTHER_RUN))
    registry.do(OWNER, "fund", 500)
    registry.do(OWNER, "fund", 1000, run=OTHER_RUN)
    return registry


@pytest.fixture
def token(registry: Registry) -> Counterpart:
    """A token in which a run is paid. The owner has a million and has approved the registry."""
    return make_token_run(registry, "token")


def make_token_run(registry: Registry, name: str) -> Counterpart:
    made = Counterpart(registry, name)
    made.call(OWNER, "mint", address_of(OWNER), 10**6)
    made.call(OWNER, "approve", registry.address, 10**6)
    registry.create_run(money_terms(token=made.address))
    return made


def put_root(registry: Registry, leaves: Sequence[Leaf], *, amount: int | None = None, root: str | None = None) -> None:
    """Make a tally of these leaves final."""
    steps = len(registry.events().commits)
    for step in (steps, steps + 1):
        registry.commit(step)
    roots = registry.events().roots
    proposal = make_proposal(
        epoch=len(roots),
        closing_block=int(registry.chain.head["number"], 16),
        parent_root=roots[-1].root if roots else make_proposal().parent_root,
        root=root or merkle_root(leaves),
        total=10**6 * (len(roots) + 1),
        amount=sum(leaf.amount for leaf in leaves) if amount is None else amount,
    )
    registry.finalise(proposal)


def put_claim(registry: Registry, leaves: Sequence[Leaf], leaf: Leaf, *, epoch: int = 0) -> None:
    registry.do(STRANGER, "claim", epoch, leaf, merkle_proof(leaves, leaf))


def call_data(name: str, *arguments: object) -> bytes:
    return abi.unhex(abi.encode_call(name, bytes.fromhex(RUN), *arguments_of(name, arguments)))


def held_by(registry: Registry) -> int:
    return registry.chain.balance(registry.address)


def refusal(call: Any) -> str:
    with pytest.raises(LedgerRejected) as refused:
        call()
    return refused.value.reason


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token", "silent_token"])
def test_token__with_or_without_a_return_value(registry: Registry, name: str) -> None:
    made = make_token_run(registry, name)
    registry.do(OWNER, "fund", 500, value=0)
    registry.do(OWNER, "stake", NODE, PAYEE, 40, value=0)
    leaves = [Leaf(NODE, PAYEE, 1, amount=300)]
    put_root(registry, leaves)
    put_claim(registry, leaves, leaves[0])
    registry.do(WALLET, "unbond", NODE)
    registry.skip(100)
    registry.do(WALLET, "withdraw", NODE)
    assert (made.view("balanceOf", PAYEE), made.view("balanceOf", registry.address)) == (340, 200)


@pytest.mark.parametrize("name", ["token", "silent_token"])
async def test_token__a_node_allows_just_what_it_gives(registry: Registry, name: str) -> None:
    made = Counterpart(registry, name)
    made.call(OWNER, "mint", address_of(OWNER), 1000)
    world = ContractWorld(money_terms(token=made.address), registry)
    await world.ledger(OWNER).fund(300)
    made.call(OWNER, "approve", registry.address, 5)  # less than enough, left from elsewhere
    await world.ledger(OWNER).stake(NODE, PAYEE, 40)
    assert (await world.ledger().funds_at(), (await world.ledger().stakes())[(NODE, PAYEE)].amount) == (300, 40)
    assert made.view("balanceOf", registry.address) == 340
    assert made.view("allowance", address_of(OWNER), registry.address) == 0


def test_token__that_answers_false_pays_and_credits_nothing(registry: Registry, token: Counterpart) -> None:
    token.call(OWNER, "behave", 0, True, False)
    assert refusal(lambda: registry.do(OWNER, "fund", 500, value=0)) == "token transfer"
    token.call(OWNER, "behave", 0, False, False)
    registry.do(OWNER, "fund", 500, value=0)
    leaves = [Leaf(NODE, PAYEE, 1, amount=300)]
    put_root(registry, leaves)
    token.call(OWNER, "behave", 0, True, False)
    assert refusal(lambda: put_claim(registry, leaves, leaves[0])) == "token transfer"
    token.call(OWNER, "behave", 0, False, False)
    put_claim(registry, leaves, leaves[0])  # nothing was marked as paid
    assert token.view("balanceOf", PAYEE) == 300


def test_token__with_a_fee_is_credited_by_what_arrived(registry: Registry, token: Counterpart) -> None:
    token.call(OWNER, "behave", 100, False, False)
    registry.do(OWNER, "fund", 500, value=0)
    registry.do(OWNER, "stake", NODE, PAYEE, 50, value=0)
    (funds, _, _), (stake,) = registry.view("pools", bytes.fromhex(RUN))[0], registry.events().changes[1:]
    assert (funds, stake.amount) == (450, 45)  # type: ignore[attr-defined]
    assert token.view("balanceOf", registry.address) == 495
    assert refusal(lambda: put_root(registry, [Leaf(NODE, PAYEE, 1, amount=451)])) == "funds"


def test_token__that_swallows_what_it_is_given(registry: Registry, token: Counterpart) -> None:
    token.call(OWNER, "behave", 0, False, True)
    assert refusal(lambda: registry.do(OWNER, "fund", 500, value=0)) == "nothing received"
    assert refusal(lambda: registry.do(OWNER, "stake", NODE, PAYEE, 5, value=0)) == "nothing received"


def test_token__native_coins_beside_it_are_refused(registry: Registry, token: Counterpart) -> None:
    assert refusal(lambda: registry.do(OWNER, "fund", 500, value=500)) == "value"
    assert refusal(lambda: registry.do(OWNER, "stake", NODE, PAYEE, 5, value=1)) == "value"
    assert held_by(registry) == 0


def test_token__without_an_allowance(registry: Registry, token: Counterpart) -> None:
    assert refusal(lambda: registry.do(STRANGER, "fund", 500, value=0)) == "no reason"


def test_token__an_address_without_code_is_refused(registry: Registry) -> None:
    assert refusal(lambda: registry.create_run(money_terms(token=PAYEE))) == "token"


def test_token__of_one_run_never_pays_for_another(registry: Registry, token: Counterpart) -> None:
    registry.create_run(money_terms(run=OTHER_RUN, token=token.address))
    registry.do(OWNER, "fund", 900, run=OTHER_RUN, value=0)
    registry.do(OWNER, "fund", 10, value=0)
    leaves = [Leaf(NODE, PAYEE, 1, amount=500)]
    put_root(registry, leaves, amount=10)
    assert refusal(lambda: put_claim(registry, leaves, leaves[0])) == "root is overdrawn"
    assert token.view("balanceOf", registry.address) == 910


@pytest.mark.parametrize("name", ["fund", "stake"])
def test_overflow__more_than_fits(registry: Registry, token: Counterpart, name: str) -> None:
    token.call(OWNER, "mint", address_of(OWNER), 2**129)
    token.call(OWNER, "approve", registry.address, 2**130)
    place = () if name == "fund" else (NODE, PAYEE)
    registry.do(OWNER, name, *place, 2**128 - 1, value=0)
    assert refusal(lambda: registry.do(OWNER, name, *place, 1, value=0)) == "too much"


# -- re-entrancy ------------------------------------------------------------------------------------------------------


ANYBODYS = ("claim", "settle", "lift", "finalise")
ITS_OWN = ("unbond", "dispute", "withdraw")


def prepare_calls(registry: Registry, wallet: str, leaves: Sequence[Leaf]) -> dict[str, bytes]:
    """Calls that would each succeed, to be attempted in the middle of a payment. The first leaf is still unpaid."""
    registry.do(OWNER, "stake", NODES[6], wallet, 40, value=None if registry.terms().token is None else 0)
    registry.do(OWNER, "stake", NODES[3], wallet, 40, value=None if registry.terms().token is None else 0)
    for node in (NODE, NODES[4]):
        registry.strike(make_strike(node=node, wallet=wallet if node == NODES[4] else PAYEE))
    registry.commit(2, final=True)
    registry.skip(60)
    final = make_proposal(
        epoch=1, parent_root=merkle_root(leaves), closing_block=int(registry.chain.head["number"], 16), total=10**7
    )
    final = replace(final, amount=registry.events().roots[-1].amount)
    lifting = [attest_lift(registry.domain, 0, key) for key in VALIDATORS[:2]]
    signatures = [bytes.fromhex(attest(registry.domain, final, key).signature) for key in VALIDATORS[:2]]
    return {
        "claim": call_data("claim", 0, leaves[1], merkle_proof(leaves, leaves[1])),
        "settle": call_data("settle", NODE),
        "lift": call_data("lift", NODE, 0, lifting),
        "finalise": abi.unhex(abi.encode_call("finalise", tally_arguments(final), signatures)),
        "unbond": call_data("unbond", NODES[6]),
        "withdraw": call_data("withdraw", NODES[3]),
        "dispute": call_data("dispute", NODES[4], digest("answer")),
    }


@pytest.mark.parametrize("inner", [*ANYBODYS, *ITS_OWN])
def test_reentrancy__a_wallet_that_calls_back_when_it_is_paid(registry: Registry, inner: str) -> None:
    registry.create_run(money_terms(dispute_seconds=50 if inner == "settle" else 5000))
    registry.do(OWNER, "fund", 500)
    wallet = Counterpart(registry, "wallet")
    leaves = [Leaf(NODE, wallet.address, 1, amount=200), Leaf(NODE, PAYEE, 1, role="relay", amount=50)]
    put_root(registry, leaves)
    call = prepare_calls(registry, wallet.address, leaves)[inner]
    if inner == "withdraw":
        wallet.call(STRANGER, "execute", registry.address, call_data("unbond", NODES[3]))
        registry.skip(100)
    wallet.call(STRANGER, "call_back", registry.address, call)
    put_claim(registry, leaves, leaves[0])
    assert (wallet.view("reentered"), wallet.view("re_entry_succeeded")) == (True, False)
    assert (registry.chain.balance(wallet.address), held_by(registry)) == (200, 380)
    wallet.call(STRANGER, "call_back", NO_ADDRESS, b"")
    wallet.call(STRANGER, "execute", registry.address, call)  # it was only the moment that was wrong


@pytest.mark.parametrize("inner", ["claim", "settle", "finalise"])
@pytest.mark.parametrize("outer", ["claim", "fund", "stake"])
def test_reentrancy__a_token_that_calls_back_when_it_moves(
    registry: Registry, token: Counterpart, inner: str, outer: str
) -> None:
    registry.do(OWNER, "fund", 500, value=0)
    leaves = [Leaf(NODE, PAYEE, 1, amount=200), Leaf(NODE, PAYEE, 1, role="relay", amount=50)]
    put_root(registry, leaves)
    call = prepare_calls(registry, PAYEE, leaves)[inner]
    token.call(OWNER, "call_back", registry.address, call)
    if outer == "claim":
        put_claim(registry, leaves, leaves[0])
    elif outer == "fund":
        registry.do(OWNER, "fund", 10, value=0)
    else:
        registry.do(OWNER, "stake", NODES[6], PAYEE, 10, value=0)
    assert (token.view("reentered"), token.view("re_entry_succeeded")) == (True, False)
    token.call(OWNER, "call_back", NO_ADDRESS, b"")
    assert registry.transact(STRANGER, registry.address, "0x" + call.hex())["status"] == "0x1"


def test_reentrancy__a_wallet_withdraws_its_stake_twice(native: Registry) -> None:
    wallet = Counterpart(native, "wallet")
    native.do(OWNER, "stake", NODE, wallet.address, 40)
    wallet.call(STRANGER, "execute", native.address, call_data("unbond", NODE))
    native.skip(100)
    wallet.call(STRANGER, "call_back", native.address, call_data("withdraw", NODE))
    wallet.call(STRANGER, "execute", native.address, call_data("withdraw", NODE))
    assert (wallet.view("reentered"), wallet.view("re_entry_succeeded")) == (True, False)
    assert (native.chain.balance(wallet.address), held_by(native)) == (40, 1500)


def test_reentrancy__a_claim_inside_its_own_payment(native: Registry) -> None:
    wallet = Counterpart(native, "wallet")
    leaves = [Leaf(NODE, wallet.address, 1, amount=200)]
    put_root(native, leaves)
    call = call_data("claim", 0, leaves[0], merkle_proof(leaves, leaves[0]))
    wallet.call(STRANGER, "call_back", native.address, call)
    put_claim(native, leaves, leaves[0])
    assert (wallet.view("reentered"), native.chain.balance(wallet.address), held_by(native)) == (True, 200, 1300)


def test_wallet__that_refuses_coins_hurts_only_itself(native: Registry) -> None:
    wallet = Counterpart(native, "wallet")
    wallet.call(STRANGER, "behave", True)
    leaves = [Leaf(NODE, wallet.address, 1, amount=200), Leaf(NODES[6], PAYEE, 1, amount=100)]
    put_root(native, leaves)
    assert refusal(lambda: put_claim(native, leaves, leaves[0])) == "payment"
    put_claim(native, leaves, leaves[1])
    wallet.call(STRANGER, "behave", False)
    put_claim(native, leaves, leaves[0])
    assert (native.chain.balance(wallet.address), native.coins(PAYEE)) == (200, 100)


# -- coins ------------------------------------------------------------------------------------------------------------


def test_value__must_be_what_is_said(native: Registry) -> None:
    assert refusal(lambda: native.do(OWNER, "fund", 5, value=4)) == "value"
    assert refusal(lambda: native.do(OWNER, "stake", NODE, PAYEE, 5, value=6)) == "value"
    assert refusal(lambda: native.do(OWNER, "fund", 0)) == "amount is zero"
    assert held_by(native) == 1500


def test_value__coins_without_a_call_are_refused(native: Registry) -> None:
    receipt = native.transact(OWNER, native.address, "0x", value=5)
    assert (receipt["status"], held_by(native)) == ("0x0", 1500)


@pytest.mark.parametrize("name", ["withdraw", "unbond", "settle"])
def test_value__calls_that_take_no_coins_refuse_them(native: Registry, name: str) -> None:
    receipt = native.transact(OWNER, native.address, "0x" + call_data(name, NODE).hex(), value=5)
    assert (receipt["status"], held_by(native)) == ("0x0", 1500)


def test_coins__of_one_run_never_pay_for_another(native: Registry) -> None:
    native.do(OWNER, "stake", NODE, PAYEE, 70)
    leaves = [Leaf(NODE, PAYEE, 1, amount=900)]
    assert refusal(lambda: put_root(native, leaves)) == "funds"
    put_root(native, leaves, amount=500)
    assert refusal(lambda: put_claim(native, leaves, leaves[0])) == "root is overdrawn"
    assert held_by(native) == 1570


def test_dust__a_strangers_stake_neither_delays_nor_binds_the_wallet(native: Registry) -> None:
    native.do(OWNER, "stake", NODE, PAYEE, 40)
    native.do(WALLET, "unbond", NODE)
    native.skip(99)
    assert refusal(lambda: native.do(STRANGER, "stake", NODE, PAYEE, 1)) == "unbonding"
    native.do(WALLET, "withdraw", NODE)
    assert native.coins(PAYEE) == 40


def test_dust__a_strangers_funds_do_not_delay_the_owner(native: Registry) -> None:
    native.commit(0, final=True)
    native.skip(99)
    native.do(STRANGER, "fund", 1)
    native.do(OWNER, "reclaim", ADDRESSES[6])
    assert native.coins(ADDRESSES[6]) == 501


def test_front_running__a_claim_sent_by_somebody_else_pays_the_wallet_all_the_same(native: Registry) -> None:
    leaves = [Leaf(NODE, PAYEE, 1, amount=200)]
    put_root(native, leaves)
    put_claim(native, leaves, leaves[0])
    assert (
        refusal(lambda: native.do(WALLET, "claim", 0, leaves[0], merkle_proof(leaves, leaves[0]))) == "nothing to pay"
    )
    assert (native.coins(PAYEE), native.coins(address_of(STRANGER))) == (200, 0)


def test_front_running__a_registration_sent_first_with_a_junk_node_signature(native: Registry) -> None:
    honest = make_registration(native.domain, nonce=3)
    native.register(replace(honest, node_signature="00" * 64))
    native.register(honest)
    held = fold_registrations(
        event for event in native.events().registrations if is_signed_by_node(event, domain=native.domain, run=RUN)
    )
    assert held[NODE].wallet == PAYEE
    assert held[NODE].block == int(native.chain.head["number"], 16)


def test_front_running__a_rotation_sent_first_with_junk_node_signatures(native: Registry) -> None:
    native.register(make_registration(native.domain))
    honest = make_rotation(native.domain)
    native.rotate(replace(honest, new_node_signature="00" * 64))
    native.rotate(replace(honest, new_node_signature=make_rotation(native.domain, new=4).new_node_signature))
    native.rotate(honest)
    events = [each for each in native.events().registrations if is_signed_by_node(each, domain=native.domain, run=RUN)]
    assert list(fold_registrations(events)) == [NODES[6]]


def test_front_running__a_run_id_taken_first_is_not_the_same_run(native: Registry) -> None:
    assert refusal(lambda: native.create_run(money_terms(epoch_budget=7))) == "run exists"
    assert native.terms() != money_terms(epoch_budget=7, created_block=native.terms().created_block)
    assert native.terms() == money_terms(created_block=native.terms().created_block)


# -- trees ------------------------------------------------------------------------------------------------------------


def test_tree__of_nothing_pays_nobody(native: Registry) -> None:
    put_root(native, [], amount=0)
    leaf = Leaf(NODE, PAYEE, 0, amount=1)
    for proof in (MerkleProof(0, 0, ()), MerkleProof(0, 1, ()), MerkleProof(2**255, 2**256 - 1, ())):
        assert refusal(lambda proof=proof: native.do(STRANGER, "claim", 0, leaf, proof)) == "proof"


def test_tree__an_inner_node_passes_for_no_leaf(native: Registry) -> None:
    leaves = [Leaf(node_from_public_key(bytes([node] * 32)), PAYEE, node, amount=node) for node in (1, 2, 3, 4)]
    put_root(native, leaves)
    hashes = [leaf_hash(leaf) for leaf in sorted_leaves(leaves)]
    forged = Leaf(node_from_public_key(hashes[0]), PAYEE, 0, amount=400)
    for proof in (MerkleProof(0, 2, (hashes[1].hex(),)), MerkleProof(0, 4, (hashes[1].hex(),))):
        assert refusal(lambda proof=proof: native.do(STRANGER, "claim", 0, forged, proof)) == "proof"


def test_tree__a_proof_fits_one_place_and_one_count(native: Registry) -> None:
    leaves = [Leaf(node_from_public_key(bytes([node] * 32)), PAYEE, node, amount=node) for node in range(1, 6)]
    put_root(native, leaves)
    for leaf in leaves:
        good = merkle_proof(leaves, leaf)
        spoiled = [
            MerkleProof(good.index ^ 1, good.count, good.siblings),
            MerkleProof(good.index, good.count + 1, good.siblings),
            MerkleProof(good.index, good.count, good.siblings[:-1]),
            MerkleProof(good.index, good.count, (*good.siblings, digest("more"))),
            MerkleProof(good.index + 2**32, good.count + 2**32, good.siblings),
        ]
        for proof in spoiled:
            assert refusal(lambda proof=proof, leaf=leaf: native.do(STRANGER, "claim", 0, leaf, proof)) == "proof"
        native.do(STRANGER, "claim", 0, leaf, good)
    assert native.coins(PAYEE) == 15


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_tree__is_the_one_that_nodes_build(native: Registry, count: int) -> None:
    leaves = [
        Leaf(node_from_public_key(bytes([i] * 32)), PAYEE, 2**128 - 1 - i, role="relay", amount=i + 1)
        for i in range(count)
    ]
    put_root(native, leaves, amount=500)
    for leaf in leaves[:: max(1, count // 4)]:
        put_claim(native, leaves, leaf)


# -- validators -------------------------------------------------------------------------------------------------------


def test_quorum_of_one__decides_alone_and_nobody_else_does(registry: Registry) -> None:
    registry.create_run(money_terms(validators=make_terms().validators[:1], quorum=1))
    for step in (0, 1):
        registry.commit(step)
    proposal = make_proposal()
    assert refusal(lambda: registry.finalise(proposal, [])) == "too few attestations"
    other = attest(registry.domain, proposal, VALIDATORS[1])
    assert refusal(lambda: registry.finalise(proposal, [other])) == "not a validator"
    registry.finalise(proposal, [attest(registry.domain, proposal, VALIDATORS[0])])


def test_duplicate_validators__count_once(native: Registry) -> None:
    assert refusal(lambda: native.strike(make_strike(), [VALIDATORS[0]] * 2)) == "attester repeated"
    assert refusal(lambda: native.strike(make_strike(), [VALIDATORS[0]])) == "too few attestations"
    assert native.view("strike_count", bytes.fromhex(RUN), bytes(32)) == (0,)


def test_malleability__the_second_form_of_a_signature_is_none(native: Registry) -> None:
    raw = bytes.fromhex(sign_typed_data(strike_typed_data(native.domain, make_strike()), VALIDATORS[0]))
    flipped = (SECP256K1_ORDER - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big")
    twin = raw[:32] + flipped + bytes([55 - raw[64]])
    for second in (twin, raw[:64] + bytes([raw[64] - 27]), raw[:64]):
        given = [Attestation("", each.hex()) for each in (raw, second)]
        assert refusal(lambda given=given: native.put_strike(make_strike(), given)) == "not a validator"
    assert not any(isinstance(each, Struck) for each in native.events().changes)


def test_overflow__a_quorum_beyond_all_numbers(registry: Registry) -> None:
    assert refusal(lambda: registry.create_run(money_terms(quorum=2**256 - 1))) == "quorum"


def test_replay__a_strike_counts_once(native: Registry) -> None:
    native.strike(make_strike())
    native.lift()
    assert refusal(lambda: native.strike(make_strike())) == "number"
    native.strike(make_strike(number=1))
    assert refusal(lambda: native.lift(0)) == "number"


def test_replay__attestations_of_another_run_contract_or_chain(native: Registry) -> None:
    strike = make_strike()
    assert refusal(lambda: strike_elsewhere(native, chain_id=1)) == "not a validator"
    assert refusal(lambda: strike_elsewhere(native, contract=PAYEE)) == "not a validator"
    native.strike(strike)
    assert refusal(lambda: strike_in_other_run(native)) == "not a validator"


def strike_elsewhere(registry: Registry, **changes: Any) -> None:
    """Put in a strike whose attestations were made for another chain or contract."""
    put_strike(registry, make_strike(), strike_typed_data(replace(registry.domain, **changes), make_strike()))


def strike_in_other_run(registry: Registry) -> None:
    """Put in, for another run, a strike whose attestations were made for this one."""
    put_strike(registry, make_strike(run=OTHER_RUN), strike_typed_data(registry.domain, make_strike()))


def put_strike(registry: Registry, strike: Strike, typed_data: dict[str, Any]) -> None:
    signatures = [bytes.fromhex(sign_typed_data(typed_data, key)) for key in VALIDATORS]
    registry.call(STRANGER, "strike", *strike_arguments(strike), signatures)
