"""Every revert reason in the contract's source is reached, as often as it occurs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ledger.calls import leaf_tuple
from ledger.contracts.build import FOLDER
from ledger.errors import LedgerRejected
from ledger.merkle import MerkleProof, merkle_proof, merkle_root
from ledger.records import ZERO_DIGEST, Leaf
from ledger.wallet import NO_ADDRESS, node_from_public_key
from tests.contract.counterparts import Counterpart
from tests.contract.harness import (
    ADDRESSES,
    KEYS,
    NODES,
    OWNER,
    RUN,
    STRANGER,
    TRAINER,
    VALIDATORS,
    WALLET,
    Registry,
    digest,
    make_operator,
    make_proposal,
    make_registration,
    make_registry,
    make_rotation,
    make_strike,
    make_terms,
)
from tests.contract.worlds import MONEY_TERMS

pytestmark = pytest.mark.no_cover  # the contract's lines are at stake, not ours

Case = Callable[[Registry], object]
CASES: list[tuple[str, Case]] = []
NO_NODE = node_from_public_key(bytes(32))
NODE, PAYEE = NODES[5], ADDRESSES[7]
LEAVES = (Leaf(NODE, PAYEE, 60, amount=60), Leaf(NODES[6], PAYEE, 60, amount=60), Leaf(NODES[4], None, 1, amount=1))
SECOND = KEYS[4]


def case(reason: str) -> Callable[[Case], Case]:
    """Register a test case: the function must end in a refusal with this reason. It gets a
    registry with a run of two trainers."""

    def keep(function: Case) -> Case:
        CASES.append((reason, function))
        return function

    return keep


def cases(*made: tuple[str, Case]) -> None:
    CASES.extend(made)


def create(**changes: Any) -> Case:
    return lambda registry: registry.create_run(make_terms(**{"run": digest("another"), **changes}))


cases(
    ("run id is zero", create(run=ZERO_DIGEST)),
    ("run exists", create(run=RUN)),
    ("no trainer", create(trainers=())),
    ("no validator", create(validators=())),
    ("quorum", create(quorum=1)),
    ("node is zero", create(trainers=(replace(make_operator(0), node=NO_NODE),))),
    ("operator is zero", create(trainers=(replace(make_operator(0), operator=NO_ADDRESS),))),
    ("payout is zero", create(trainers=(replace(make_operator(0), payout=NO_ADDRESS),))),
    ("node repeated", create(trainers=(make_operator(0), replace(make_operator(1), node=NODES[0])))),
    ("operator repeated", create(trainers=(make_operator(0), replace(make_operator(0), node=NODES[1])))),
    ("epoch checkpoints", create(epoch_checkpoints=0)),
    ("epoch seconds", create(epoch_max_seconds=2**40)),
    ("round seconds", create(round_seconds=0)),
    ("lease seconds", create(lease_seconds=0)),
    ("takeover blocks", create(takeover_blocks=0)),
    ("unbond seconds", create(unbond_seconds=0)),
    ("dispute seconds", create(dispute_seconds=2**40)),
    ("change seconds", create(change_seconds=0)),
    ("minimum stake", create(min_stake=2**128)),
    ("epoch budget", create(epoch_budget=2**128)),
    ("token", create(token=PAYEE)),
)


def register(wallet: bytes | None = WALLET, **changes: Any) -> Case:
    return lambda registry: registry.register(replace(make_registration(registry.domain, wallet=wallet), **changes))


cases(
    ("unknown run", register(run=digest("another"))),
    ("node is zero", register(node=NO_NODE)),
    ("nonce", register(nonce=0)),
    ("node signature length", register(node_signature="ab")),
    ("signature without a wallet", register(None, wallet_signature="ab")),
    ("both linked and claimed", register(claimed=PAYEE)),
    ("wallet signature", register(nonce=2)),
)


@case("nonce")
def older_than_the_last(registry: Registry) -> None:
    registry.register(make_registration(registry.domain, nonce=3))
    registry.register(make_registration(registry.domain, nonce=2))


def rotate(wallet: bytes | None = WALLET, **changes: Any) -> Case:
    return lambda registry: registry.rotate(replace(make_rotation(registry.domain, wallet=wallet), **changes))


cases(
    ("node is zero", rotate(new_node=NO_NODE)),
    ("node repeated", rotate(new_node=NODE)),
    ("nonce", rotate(nonce=2**64)),
    ("node signature length", rotate(new_node_signature="")),
    ("signature without a wallet", rotate(None, wallet_signature="ab")),
    ("node signature length", rotate(None, old_node_signature="ab")),
    ("both keys signed", rotate(old_node_signature="ab")),
)

cases(
    ("not the leading trainer", lambda registry: registry.commit(0, key=SECOND)),
    ("term", lambda registry: registry.commit(0, term=2)),
    ("manifest is zero", lambda registry: registry.commit(0, manifest=ZERO_DIGEST)),
    ("step", lambda registry: registry.commit(1)),
    ("parent", lambda registry: registry.commit(0, parent=digest("x"))),
    ("lease has not begun", lambda registry: registry.do(TRAINER, "renew")),
    ("not a trainer", lambda registry: registry.do(STRANGER, "report_lapse")),
    ("leads already", lambda registry: registry.do(TRAINER, "take_over")),
    ("lapse", lambda registry: registry.do(SECOND, "take_over")),
)


@case("run has ended")
def commit_after_the_final_one(registry: Registry) -> None:
    registry.commit(0, final=True)
    registry.commit(1)


@case("run has ended")
def renew_after_the_final_one(registry: Registry) -> None:
    registry.commit(0, final=True)
    registry.do(TRAINER, "renew")


@case("lease")
def report_a_lapse_that_is_none(registry: Registry) -> None:
    registry.commit(0)
    registry.do(SECOND, "report_lapse")


def lapsed(registry: Registry, key: bytes = SECOND) -> None:
    registry.commit(0)
    registry.skip(61)
    registry.do(key, "report_lapse")


@case("lapse")
def report_a_lapse_twice(registry: Registry) -> None:
    lapsed(registry)
    registry.do(SECOND, "report_lapse")


@case("lapse")
def take_over_too_soon(registry: Registry) -> None:
    lapsed(registry)
    registry.do(SECOND, "take_over")


@case("lease")
def take_over_out_of_turn(registry: Registry) -> None:
    lapsed(registry, KEYS[6])
    registry.skip(1)
    registry.skip(1)
    registry.do(KEYS[6], "take_over")


def closed(registry: Registry) -> Registry:
    """Funds of 100, and checkpoints 0 and 1: the epoch closes at the newest block."""
    registry.do(OWNER, "fund", 100)
    registry.commit(0)
    registry.commit(1)
    return registry


def newest(registry: Registry) -> int:
    return int(registry.chain.head["number"], 16)


def finalise(**changes: Any) -> Case:
    def call(registry: Registry) -> None:
        closed(registry)
        registry.finalise(make_proposal(**{"closing_block": newest(registry), **changes}))

    return call


cases(
    ("epoch", finalise(epoch=1)),
    ("parent root", finalise(parent_root=digest("x"))),
    ("root is zero", finalise(root=ZERO_DIGEST)),
    ("round", finalise(round=2**40)),
    ("units", finalise(total=2**128)),
    ("amount", finalise(amount=1001)),
    ("funds", finalise(amount=101)),
    ("closing block", finalise(closing_block=10**6)),
    ("epoch is open", finalise(closing_block=4)),
    ("too few attestations", lambda registry: closed(registry).strike(make_strike(), VALIDATORS[:1])),
    ("not a validator", lambda registry: registry.strike(make_strike(), [STRANGER])),
    ("attester repeated", lambda registry: registry.strike(make_strike(), [VALIDATORS[0]] * 2)),
)


def tallied(registry: Registry) -> Registry:
    """A final root over `LEAVES` that promises 100."""
    closed(registry)
    registry.finalise(make_proposal(closing_block=newest(registry), root=merkle_root(LEAVES), amount=100))
    return registry


@case("amount")
def promise_less_than_before(registry: Registry) -> None:
    tallied(registry)
    registry.commit(2)
    registry.commit(3)
    registry.finalise(
        make_proposal(epoch=1, parent_root=merkle_root(LEAVES), closing_block=newest(registry), amount=99)
    )


def claim(leaf: Leaf, *, epoch: int = 0, proof: MerkleProof | None = None) -> Case:
    made = proof or merkle_proof(LEAVES, leaf)
    return lambda registry: tallied(registry).do(STRANGER, "claim", epoch, leaf, made)


cases(
    ("epoch", claim(LEAVES[0], epoch=1)),
    ("leaf has no wallet", claim(LEAVES[2])),
    ("proof", claim(LEAVES[0], proof=merkle_proof(LEAVES, LEAVES[1]))),
)


@case("role")
def claim_for_a_role_that_is_none(registry: Registry) -> None:
    leaf = (4, *leaf_tuple(LEAVES[0])[1:])
    tallied(registry).call(STRANGER, "claim", bytes.fromhex(RUN), 0, leaf, 0, 1, [])


@case("nothing to pay")
def claim_twice(registry: Registry) -> None:
    claim(LEAVES[0])(registry)
    registry.do(STRANGER, "claim", 0, LEAVES[0], merkle_proof(LEAVES, LEAVES[0]))


@case("root is overdrawn")
def claim_more_than_is_promised_in_all(registry: Registry) -> None:
    claim(LEAVES[0])(registry)
    registry.do(STRANGER, "claim", 0, LEAVES[1], merkle_proof(LEAVES, LEAVES[1]))


def over(registry: Registry) -> Registry:
    registry.commit(0, final=True)
    registry.skip(100)
    return registry


cases(
    ("not the owner", lambda registry: registry.do(STRANGER, "reclaim", PAYEE)),
    ("receiver is zero", lambda registry: over(registry).do(OWNER, "reclaim", NO_ADDRESS)),
    ("run is not over", lambda registry: registry.do(OWNER, "reclaim", PAYEE)),
    ("nothing to pay", lambda registry: over(registry).do(OWNER, "reclaim", PAYEE)),
    ("amount is zero", lambda registry: registry.do(OWNER, "fund", 0)),
    ("value", lambda registry: registry.do(OWNER, "fund", 5, value=4)),
)


def staked(registry: Registry) -> Registry:
    registry.do(STRANGER, "stake", NODE, PAYEE, 40)
    return registry


cases(
    ("node is zero", lambda registry: registry.do(STRANGER, "stake", NO_NODE, PAYEE, 40)),
    ("wallet is zero", lambda registry: registry.do(STRANGER, "stake", NODE, NO_ADDRESS, 40)),
    ("below the minimum stake", lambda registry: registry.do(STRANGER, "stake", NODE, PAYEE, 9)),
    ("no stake", lambda registry: registry.do(WALLET, "unbond", NODE)),
    ("no stake", lambda registry: registry.do(WALLET, "withdraw", NODE)),
    ("bonded", lambda registry: staked(registry).do(WALLET, "withdraw", NODE)),
)


@case("unbonding")
def add_to_what_is_unbonding(registry: Registry) -> None:
    staked(registry).do(WALLET, "unbond", NODE)
    registry.do(STRANGER, "stake", NODE, PAYEE, 40)


@case("unbonding")
def unbond_twice(registry: Registry) -> None:
    staked(registry).do(WALLET, "unbond", NODE)
    registry.do(WALLET, "unbond", NODE)


@case("stake is frozen")
def withdraw_while_struck(registry: Registry) -> None:
    staked(registry).do(WALLET, "unbond", NODE)
    registry.skip(90)
    registry.strike(make_strike())
    registry.skip(20)
    registry.do(WALLET, "withdraw", NODE)


def struck(registry: Registry) -> Registry:
    registry.strike(make_strike())
    return registry


cases(
    ("node is struck", lambda registry: staked(struck(registry))),
    ("node is zero", lambda registry: registry.strike(make_strike(node=NO_NODE))),
    ("strike is open", lambda registry: struck(registry).strike(make_strike(number=1))),
    ("number", lambda registry: registry.strike(make_strike(number=1))),
    ("reason", lambda registry: registry.strike(make_strike(reason=2**16))),
    ("evidence is zero", lambda registry: registry.strike(make_strike(evidence=ZERO_DIGEST))),
    ("no strike is open", lambda registry: registry.do(STRANGER, "settle", NODE)),
    ("window is open", lambda registry: struck(registry).do(STRANGER, "settle", NODE)),
    ("number", lambda registry: struck(registry).lift(1)),
    ("not the wallet", lambda registry: struck(registry).do(STRANGER, "dispute", NODE, digest("answer"))),
    ("evidence is zero", lambda registry: struck(registry).do(WALLET, "dispute", NODE, ZERO_DIGEST)),
)


@case("disputed before")
def dispute_twice(registry: Registry) -> None:
    for _ in range(2):
        (registry if registry.events().changes else struck(registry)).do(WALLET, "dispute", NODE, digest("answer"))


@case("window is over")
def dispute_too_late(registry: Registry) -> None:
    struck(registry).skip(60)
    registry.do(WALLET, "dispute", NODE, digest("answer"))


@case("no change waits")
def apply_nothing(registry: Registry) -> None:
    registry.do(STRANGER, "apply_validators")


@case("change must wait")
def apply_too_soon(registry: Registry) -> None:
    registry.do(OWNER, "propose_validators", make_terms().validators, 2)
    registry.do(STRANGER, "apply_validators")


@case("nothing changes")
def resume_what_runs(registry: Registry) -> None:
    registry.do(OWNER, "pause", False)


@case("run is paused")
def commit_while_paused(registry: Registry) -> None:
    registry.do(OWNER, "pause", True)
    registry.commit(0)


@case("payment")
def pay_a_wallet_that_refuses(registry: Registry) -> None:
    wallet = Counterpart(registry, "wallet")
    wallet.call(STRANGER, "behave", True)
    over(registry).do(OWNER, "fund", 5)
    registry.do(OWNER, "reclaim", wallet.address)


def with_token(registry: Registry, *, refuses: bool = False, swallows: bool = False) -> Counterpart:
    """A second run, paid in a token of which the owner has enough."""
    token = Counterpart(registry, "token")
    token.call(OWNER, "mint", ADDRESSES[9], 2**130)
    token.call(OWNER, "approve", registry.address, 2**130)
    token.call(OWNER, "behave", 0, refuses, swallows)
    registry.create_run(make_terms(**{**MONEY_TERMS, "run": digest("another"), "token": token.address}))
    return token


def in_tokens(registry: Registry, name: str, *arguments: object, value: int = 0) -> None:
    registry.do(OWNER, name, *arguments, run=digest("another"), value=value)


@case("value")
def coins_beside_a_token(registry: Registry) -> None:
    with_token(registry)
    in_tokens(registry, "fund", 5, value=5)


@case("token transfer")
def a_token_that_takes_nothing(registry: Registry) -> None:
    with_token(registry, refuses=True)
    in_tokens(registry, "fund", 5)


@case("token transfer")
def a_token_that_pays_nothing(registry: Registry) -> None:
    token = with_token(registry)
    in_tokens(registry, "fund", 5)
    registry.commit(0, run=digest("another"), final=True)
    registry.skip(100)
    token.call(OWNER, "behave", 0, True, False)
    in_tokens(registry, "reclaim", PAYEE)


@case("nothing received")
def a_token_that_loses_everything(registry: Registry) -> None:
    with_token(registry, swallows=True)
    in_tokens(registry, "fund", 5)


@case("too much")
def more_funds_than_fit(registry: Registry) -> None:
    with_token(registry)
    in_tokens(registry, "fund", 2**128)


@case("too much")
def a_larger_stake_than_fits(registry: Registry) -> None:
    with_token(registry)
    in_tokens(registry, "stake", NODE, PAYEE, 2**128)


@pytest.fixture
def registry() -> Registry:
    """A registry with a run of three trainers and short windows."""
    trainers = tuple(make_operator(index) for index in (0, 4, 6))
    return make_registry(make_terms(**MONEY_TERMS, trainers=trainers, min_stake=10))


@pytest.mark.parametrize(
    ("reason", "call"), CASES, ids=[f"{number}-{reason}" for number, (reason, _) in enumerate(CASES)]
)
def test_refusal(registry: Registry, reason: str, call: Case) -> None:
    with pytest.raises(LedgerRejected) as refusal:
        call(registry)
    assert refusal.value.reason == reason


def test_refusals__all_of_the_source() -> None:
    source = "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.vy")))
    written = Counter(re.findall(r'^ +(?:checks\.must\(|assert )[^\n]*, "([^"\n]+)"\)?$', source, re.MULTILINE))
    assert written.total() == len(re.findall(r"^ +(?:checks\.must\(|assert )(?!condition)", source, re.MULTILINE))
    assert Counter(reason for reason, _ in CASES) == written


def test_refusals__every_reason_is_short_enough_to_be_given_whole() -> None:
    assert max(len(reason) for reason, _ in CASES) <= 32
